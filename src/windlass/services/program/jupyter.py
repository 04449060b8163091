"""Program of the rank of a notebook or a TensorBoard: starts jupyter-server on one port, with TLS and a token.

Standard library only, Python 3.9. Its argument is a JSON object, see `main`. The user's own settings of Jupyter are not
read, because they could open the server to other machines.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PORT_FILE = "port"
OUTPUT = "output"
PAGE = "windlass.ipynb"
SOCKET_CHARS = 100
"""Paths of Unix sockets have at most 107 bytes."""
CHECK_SECONDS = 60
NEWS = "@jupyterlab/apputils-extension:announcements"
ADDED = "windlass-jupyter"
"""Folder in the home with the packages that the job's setup has installed."""


def main() -> None:
    """Replaces this process with the server. Keys of the argument:

    `logdir`: folder of event files, relative to the service's folder; `root`: folder of a notebook, `output` for the
    folder of the run's results, null for TensorBoard alone; `idle`: seconds without requests after which the server
    ends, 0 for never; `kernel`: command of the notebooks' kernel, null for the server's own interpreter; `follow`:
    command that copies new event files while the server runs, null for none; `ip`: address to listen on, the loopback
    address if the key is missing.
    """
    os.umask(0o077)
    asked = json.loads(sys.argv[1])
    first_page = "/tensorboard/" if asked["root"] is None else "/lab"
    if asked["root"] == OUTPUT:
        asked["root"], first_page = os.environ["WINDLASS_OUTPUT_DIR"], f"/lab/tree/{PAGE}"
    folder = Path(os.environ["WINDLASS_SERVICE_DIR"])
    given = os.environ.get("WINDLASS_SERVICE_PORT")
    # A Secret of a cluster is mounted read-only.
    place = folder if given is None else Path(tempfile.mkdtemp(prefix="windlass-"))
    port = int(given) if given is not None else free_port()
    environ = environment(folder, place, Path.home() / ADDED)
    if asked["follow"] is not None:
        subprocess.Popen(asked["follow"], stdin=subprocess.DEVNULL)
    if asked["kernel"] is not None:
        write(place, "data/kernels/python3/kernel.json", {"argv": asked["kernel"], "display_name": "Python of the run"})
    if asked["root"] is not None:
        add_page(folder, Path(asked["root"]))
    found = settings({**asked, "first_page": first_page}, folder, place, port)
    write(place, "config/labconfig/page_config.json", {"disabledExtensions": {NEWS: True}})
    path = write(place, "config/settings.json", found)
    if given is None:
        write(place, PORT_FILE, port)
    module = "jupyter_server" if asked["root"] is None else "jupyterlab"
    os.execve(sys.executable, [sys.executable, "-m", module, f"--config={path}"], environ)


def free_port() -> int:
    """Returns a port of the loopback address that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(folder: Path, place: Path, added: Path) -> "dict[str, str]":
    """Returns the environment of the server, whose files are below `place`; `added` has further packages, if it
    exists.
    """
    environ = dict(os.environ, JUPYTER_TOKEN_FILE=str(folder / "token"))
    environ.pop("JUPYTER_TOKEN", None)
    for name in ("CONFIG", "DATA", "RUNTIME"):
        (place / name.lower()).mkdir(mode=0o700, exist_ok=True)
        environ[f"JUPYTER_{name}_DIR"] = str(place / name.lower())
    environ["JUPYTER_PATH"] = str(place / "data")  # before the kernel of the server's own environment
    environ["IPYTHONDIR"] = str(place / "ipython")
    if added.is_dir():
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (environ.get("PYTHONPATH"), str(added))))
        environ["JUPYTER_PATH"] += f"{os.pathsep}{added}/share/jupyter"
        environ["JUPYTER_CONFIG_PATH"] = f"{added}/etc/jupyter"
        environ["JUPYTERLAB_DIR"] = f"{added}/share/jupyter/lab"
    return environ


def settings(asked: "dict[str, Any]", folder: Path, place: Path, port: int) -> "dict[str, Any]":
    """Returns the settings of jupyter-server, of its proxy and of JupyterLab."""
    idle, root = int(asked["idle"]), asked["root"]
    near = place if len(str(place)) < SOCKET_CHARS - 20 else Path(tempfile.mkdtemp(prefix="windlass-"))
    server = {
        "ip": asked.get("ip", "127.0.0.1"),
        "allow_remote_access": "ip" in asked,
        "port": port,
        "port_retries": 0,
        "certfile": str(folder / "tls.crt"),
        "keyfile": str(folder / "tls.key"),
        "open_browser": False,
        "allow_root": True,
        "root_dir": str(place / "runtime") if root is None else root,
        "default_url": asked["first_page"],
        "terminals_enabled": root is not None,
        "shutdown_no_activity_timeout": idle,
        "jpserver_extensions": {"jupyter_server_proxy": True},
    }
    board = {
        "command": [sys.executable, __file__, "--tensorboard", str(folder / asked["logdir"]), "{unix_socket}"],
        "unix_socket": str(near / "tensorboard.sock"),
        "absolute_url": True,
        "timeout": 120,
        "launcher_entry": {"title": "TensorBoard"},
    }
    # The server does not end while kernels and terminals run, so idle ones are ended first.
    kernels = {"cull_idle_timeout": idle, "cull_interval": CHECK_SECONDS, "cull_connected": True}
    return {
        "ServerApp": server,
        "ServerProxy": {"servers": {"tensorboard": board}},
        "MappingKernelManager": kernels,
        "TerminalManager": {"cull_inactive_timeout": idle, "cull_interval": CHECK_SECONDS},
        # JupyterLab would ask the internet for news and packages
        "LabApp": {
            "default_url": asked["first_page"],  # overrides the URL of ServerApp
            "check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
            "news_url": None,
            "extension_manager": "readonly",
        },
    }


def add_page(folder: Path, root: Path) -> None:
    """Copies the prepared page to the folder of the notebook, unless a copy exists, which the user may have edited."""
    source, target = folder / PAGE, root / PAGE
    if source.exists() and not target.exists():
        target.write_bytes(source.read_bytes())


def write(place: Path, name: str, value: object) -> Path:
    """Writes a value as JSON, atomically. Returns the path of the file."""
    path = place / name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value), encoding="utf-8")
    return new.replace(path)


def serve_tensorboard(logdir: str, path: str) -> None:
    """Runs TensorBoard on a Unix socket that only this user can open; a port would be open to all users here."""
    from tensorboard import main as tensorboard  # type: ignore[import-not-found]
    from tensorboard import manager, program

    if Path(path).exists():
        Path(path).unlink()
    program.WerkzeugServer.get_url = lambda _server: path  # the default builds a URL from host and port
    manager.write_info_file = lambda _info: None  # it would announce a port to other TensorBoards
    # Without `--load_fast false`, TensorBoard may start its data server, which listens on another port.
    options = ["--host", f"unix://{path}", "--path_prefix", "/tensorboard", "--load_fast", "false"]
    sys.argv = ["tensorboard", "--logdir", logdir, "--reload_interval", "5", *options]
    tensorboard.run_main()


if __name__ == "__main__":
    if sys.argv[1] == "--tensorboard":
        serve_tensorboard(*sys.argv[2:])
    main()
