"""Creates the two images of the test cluster, and the host folders that are mounted into every container.

An image with Python and torch would have gigabytes. Instead the images are almost empty, and the container runtime adds
this machine's /usr, the interpreter and `.venv` to each container, read-only. The mounts are not in the pod's manifest,
so pod security `restricted` is not violated.
"""

from __future__ import annotations

import hashlib
import io
import json
import resource
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from tests.cluster.bed.layout import ROOT

VENV = "/opt/venv"
PYTHON = f"{VENV}/bin/python"
HOROVOD = "/opt/horovod"
HOROVOD_ENV = ROOT / ".cache" / "horovod-env"
BASE, PAUSE = "localhost/base:1", "localhost/pause:1"
OPEN_FILES = 1 << 20
USER = 1000
"""A numeric user id, by which the kubelet can verify that the image does not run as root."""
SEARCH_PATH = f"{VENV}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TEXTS = {
    "etc/passwd": f"root:x:0:0:root:/root:/bin/bash\ntrainer:x:{USER}:{USER}:trainer:/home/trainer:/bin/bash\n",
    "etc/group": f"root:x:0:\ntrainer:x:{USER}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
OPEN_FOLDERS = {"tmp": 0o1777, "home/trainer": 0o755, "workspace": 0o777}


def base_layer() -> bytes:
    """Returns a root file system of links into /usr, with a user, a home folder and a writable folder."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name in ("bin", "sbin", "lib", "lib64"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(link)
        for name, text in TEXTS.items():
            _add(tar, name, text.encode(), 0o644)
        for name, mode in OPEN_FOLDERS.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            entry.uid = entry.gid = USER if name.startswith("home") else 0
            tar.addfile(entry)
    return stream.getvalue()


def pause_layer(program: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        _add(tar, "pause", Path(program).read_bytes(), 0o755)
    return stream.getvalue()


def write_archive(path: Path, pause: str) -> None:
    """Writes both images as one archive in the format of `docker save`."""
    environment = [f"PATH={SEARCH_PATH}", "LANG=C.UTF-8"]
    images = {
        BASE: (
            base_layer(),
            {"User": f"{USER}:{USER}", "Env": environment, "WorkingDir": "/workspace", "Cmd": [PYTHON]},
        ),
        PAUSE: (pause_layer(pause), {"User": "65535:65535", "Entrypoint": ["/pause"]}),
    }
    listed = []
    with tarfile.open(path, "w") as tar:
        for tag, (layer, config) in images.items():
            name = tag.split("/")[1].split(":")[0]
            _add(tar, f"{name}.tar", layer, 0o644)
            _add(tar, f"{name}.json", _config(layer, config), 0o644)
            listed.append({"Config": f"{name}.json", "RepoTags": [tag], "Layers": [f"{name}.tar"]})
        _add(tar, "manifest.json", json.dumps(listed).encode(), 0o644)


def _config(layer: bytes, config: dict[str, Any]) -> bytes:
    layers = {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]}
    return json.dumps({"architecture": "amd64", "os": "linux", "config": config, "rootfs": layers}).encode()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def shown_folders(prefix: Path | None = None) -> dict[str, str]:
    """Returns the host folders that containers see, with their paths there.

    The interpreter keeps its path, which the links in `.venv` refer to.
    """
    prefix = prefix or Path(sys.prefix)
    shown = {"/usr": "/usr", str(prefix): VENV}
    if Path("/etc/alternatives").is_dir():
        shown["/etc/alternatives"] = "/etc/alternatives"
    if HOROVOD_ENV.is_dir():  # after `make horovod`
        shown[str(HOROVOD_ENV)] = HOROVOD
    if not sys.base_prefix.startswith("/usr/") and sys.base_prefix != "/usr":
        shown[sys.base_prefix] = sys.base_prefix
    return shown


def runtime_spec() -> dict[str, Any]:
    """Returns the default runtime spec with the host folders added."""
    said = subprocess.run(["ctr", "oci", "spec"], capture_output=True, text=True, check=True).stdout
    spec: dict[str, Any] = json.loads(said)
    # Replaces a default limit of 1,024 by the hard limit, which containers have on most nodes.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    spec["process"]["rlimits"] = [{"type": "RLIMIT_NOFILE", "hard": files, "soft": files}]
    for source, target in shown_folders().items():
        options = ["rbind", "ro", "nosuid", "nodev"]
        spec["mounts"].append({"destination": target, "type": "bind", "source": source, "options": options})
    return spec


def shows_horovod(folder: Path) -> bool:
    """Returns whether the containers of a node see the environment of `make horovod`; `folder` is the node's folder."""
    spec = json.loads((folder / "runtime.json").read_text())
    made = any(HOROVOD_ENV.glob(".ready-*"))
    return made and any(mount["destination"] == HOROVOD for mount in spec["mounts"])
