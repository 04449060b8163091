"""Starts the node of a SageMaker host: unpacks the code, sets SageMaker's variables, executes `pod.py`.

This program is the main process of the container. It is in an input channel, next to `boot.py` and the node specs, and
uses only `boot.py` and the standard library of Python 3.9 or later. The inputs are documented in "How Amazon SageMaker
AI provides training information". The variables are those of the SageMaker training toolkit.
"""

import os
import signal
import sys
import time

if __name__ == "__main__":  # installed first, because PID 1 of a container ignores signals without a handler

    def _leave(number: int, _frame: object) -> None:
        """Exits after writing a last event to the log. Imports nothing, because the signal may arrive during
        an import.
        """
        try:
            os.write(1, b'[n] {"kind": "worker-failed", "at": %f}\n' % time.time())
        finally:
            sys.exit(128 + number)

    signal.signal(signal.SIGTERM, _leave)

import gzip
import json
import re
import subprocess
import tarfile
import traceback
from typing import Any, NoReturn

HERE = os.path.dirname(os.path.abspath(__file__))
OPT = "/opt/ml"
BASE = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
"""`/opt/ml`, or another folder on a host without SageMaker's mounts."""


def _path(name: str) -> str:
    return os.path.join(BASE, *name.split("/"))


def _fail(message: str) -> NoReturn:
    """Writes the reason as the last event of the log (`WorkerFailed`) and to the file that SageMaker shows.
    Then exits.
    """
    os.write(1, ("[w] this host cannot start: " + message + "\n").encode(errors="backslashreplace"))
    if not os.environ.get("WINDLASS_CODE_DIGEST"):
        traceback.print_exc()
    event = {"kind": "worker-failed", "at": time.time(), "message": message}
    os.write(1, f"[n] {json.dumps(event)}\n".encode())
    try:
        with open(_path("output/failure"), "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(message)
    except OSError:
        pass
    sys.exit(1)


if sys.version_info < (3, 9):  # noqa: UP036 - of the image; before the first annotation that it cannot evaluate
    _fail(f"Windlass needs Python 3.9 or newer, and {sys.executable} of the image is {sys.version.split()[0]}")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from windlass.worker import boot
else:
    sys.path.insert(0, HERE)
    import boot

OWN_CHANNELS = ("windlass", "windlass-code")
OPTION = re.compile(r"--?[A-Za-z]")
"""Matches the beginning of an option, but not a negative number."""
DEVICE = re.compile(r"nvidia\d+")
TYPE = re.compile(r"ml\.([a-z0-9-]+)\.(\d+)xlarge")
EFA_FROM = {
    "g4dn": 8, "g5": 8, "g6": 8, "g6e": 8, "p3dn": 24, "p4d": 24, "p4de": 24, "p5": 4, "p5e": 48, "p5en": 48,
    "p6-b200": 48, "p6-b300": 48, "trn1": 32, "trn1n": 32, "trn2": 48,
}  # fmt: skip
"""Instance families with EFA, each with the number before `xlarge` in its smallest size that has EFA."""
RDMA = ("p4", "p5", "p6", "trn")
"""Prefixes of the instance families in which EFA accesses accelerator memory directly (RDMA)."""


def main() -> NoReturn:
    """Executes `pod.py`, which runs this host's node. On failure, reports the reason and exits with 1."""
    try:
        _start()
    except Exception as error:
        _fail(f"{type(error).__name__}: {error}")


def _start() -> NoReturn:
    resources, inputs = _config("resourceconfig"), _config("inputdataconfig")
    hosts = sorted(resources["hosts"], key=_number)
    archive = os.path.join(BASE, "input", "data", "windlass-code", "code.tar.gz")
    digest = boot.digest_of(archive)
    if digest != os.environ["WINDLASS_CODE_DIGEST"]:
        _fail(f"the code is damaged: its digest is {digest}")
    work = os.path.join(BASE, "windlass")
    os.makedirs(work, exist_ok=True)
    with tarfile.open(archive) as tar:
        boot.unpack(tar, work)
    nodes = os.path.join(work, "nodes.json.gz")
    _place_nodes(os.path.join(HERE, "nodes.json.gz"), nodes, hosts)
    place = str(hosts.index(resources["current_host"]))
    ranks = _ranks(nodes, place)
    words = script(ranks)
    hyperparameters = {**arguments(words[1:]), **_config("hyperparameters")}
    env = {**variables(resources, hyperparameters, inputs, hosts, words), **network(resources)}
    env["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // len(ranks)))  # ranks share the cores
    env.update(os.environ)
    secrets = _secrets(os.path.join(work, "travel"))
    env.update({**secrets, "WINDLASS_SECRET_VARIABLES": ",".join(secrets)} if secrets else {})
    env["JOB_COMPLETION_INDEX"] = place
    env["WINDLASS_FAILURE_FILE"] = os.path.join(BASE, "output", "failure")
    env["WINDLASS_PRELOAD"] = "1"
    os.chdir(os.path.join(work, "code"))
    program = os.path.join(work, "travel", "windlass", "worker", "pod.py")
    argv = [sys.executable, "-I", "-S", program, os.path.join(work, "attempt"), nodes]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # SIGTERM is blocked until pod.py installs its handler
    os.execve(sys.executable, argv, env)


def _secrets(travel: str) -> dict[str, str]:
    """Reads the secrets that the job names, with the unpacked Windlass. Returns their variables, which are never
    written to disk.
    """
    names = os.environ.get("WINDLASS_SECRETS")
    if not names:
        return {}
    program = "import sys; sys.path.insert(0, sys.argv.pop(1)); from windlass.stores.s3.secrets import main; main()"
    command = [sys.executable, "-I", "-c", program, travel, *names.split(",")]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        _fail((done.stderr.decode(errors="replace").strip().splitlines() or ["secrets cannot be read"])[-1])
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _place_nodes(source: str, target: str, hosts: list[str]) -> None:
    """Writes the node specs with this host's folders, and with the host names that SageMaker has assigned."""
    with gzip.open(source, "rt") as file:
        text = file.read()
    names = {f"algo-{number}": host for number, host in enumerate(hosts, 1)}
    if any(name != host for name, host in names.items()):
        text = re.sub(r"\balgo-\d+\b", lambda found: names.get(found[0], found[0]), text)
    if BASE != OPT:  # replaced after the names, because the folder may be named like a host
        text = re.sub(re.escape(OPT) + r"(?=[/\"])", lambda _: json.dumps(BASE)[1:-1], text)
    with gzip.open(target, "wt") as file:
        file.write(text)


def _ranks(nodes: str, place: str) -> list[dict[str, Any]]:
    """Reads the rank specs of a node from the file of node specs."""
    with gzip.open(nodes, "rt") as file:
        found: list[dict[str, Any]] = json.load(file)["nodes"][place]["ranks"]
    return found


def script(ranks: list[dict[str, Any]]) -> list[str]:
    """Returns the script that the ranks of a node run, and its arguments."""
    words: list[str] = ranks[0]["argv"]
    words = words[2:] if len(words) > 2 and words[1].endswith("/windlass/worker/rank.py") else words
    return words[1:] if words[0] == "-m" else words


def arguments(words: list[str]) -> dict[str, str]:
    """Converts the arguments of a script to hyperparameters, which the toolkit passes as `--NAME VALUE`.

    Options without a value become `true`. Arguments that belong to no option are left out.
    """
    found: dict[str, str] = {}
    name = ""
    for word in words:
        if OPTION.match(word):
            name, is_whole, value = word.lstrip("-").partition("=")
            found[name] = value if is_whole else "true"
            name = "" if is_whole else name
        elif name:
            found[name], name = word, ""
    return found


def variables(
    resources: dict[str, Any],
    hyperparameters: dict[str, str],
    inputs: dict[str, Any],
    hosts: list[str],
    words: list[str],
) -> dict[str, str]:
    """Returns the variables that SageMaker's training toolkit and SDK set for scripts.

    `words` are the script and its arguments.
    """
    current, kind = resources["current_host"], resources.get("current_instance_type", "")
    groups = resources.get("instance_groups") or []
    channels = {name: one for name, one in inputs.items() if name not in OWN_CHANNELS}
    paths = {name: os.path.join(BASE, "input", "data", name) for name in channels}
    values = {name: _value(text) for name, text in hyperparameters.items()}
    source = os.path.join(BASE, "windlass", "code")
    found: dict[str, Any] = {
        "channel_input_dirs": paths, "channels": sorted(channels), "current_host": current,
        "current_instance_type": kind, "current_instance_group": resources.get("current_group_name", ""),
        "current_instance_group_hosts": hosts, "hosts": hosts, "hps": values, "input_config_dir": _path("input/config"),
        "input_data_config": channels, "input_data_dir": _path("input/data"), "input_dir": _path("input"),
        "instance_groups": [one.get("instance_group_name", "") for one in groups], "is_hetero": len(groups) > 1,
        "log_level": 20, "model_dir": _path("model"), "network_interface_name": _interface(resources),
        "num_cpus": os.cpu_count() or 1, "num_gpus": _num_gpus(), "num_neurons": 0,
        "output_data_dir": _path("output/data"), "output_dir": _path("output"),
        "output_failure": _path("output/failure"), "output_intermediate_dir": _path("output/intermediate"),
        "resource_config": resources,
        "host_count": len(hosts), "current_host_rank": hosts.index(current), "master_addr": hosts[0],
        "master_port": 7777, "source_dir": source, "entry_script": words[0],
        "module_dir": source, "module_name": os.path.splitext(os.path.basename(words[0]))[0],
        "user_entry_point": words[0], "user_args": words[1:],
        "instance_groups_dict": {one.get("instance_group_name", ""): one for one in groups},
    }  # fmt: skip
    env = {f"SM_{name.upper()}": _text(value) for name, value in found.items() if name != "channel_input_dirs"}
    env["SM_TRAINING_ENV"] = json.dumps(
        {**found, "hyperparameters": values, "job_name": os.environ.get("TRAINING_JOB_NAME", "")}, sort_keys=True
    )
    env.update({f"SM_CHANNEL_{name.upper()}": path for name, path in paths.items()})
    for name, value in values.items():
        env[f"SM_HP_{name.upper()}"] = _text(value)
        env[f"SM_HP_{name.upper().replace('-', '_')}"] = _text(value)  # shells cannot read names with hyphens
    return env


def network(resources: dict[str, Any]) -> dict[str, str]:
    """Returns variables for collectives: the network interface, and settings of EFA if the instance type has EFA."""
    interface = _interface(resources)
    env = {"NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface}
    found = TYPE.fullmatch(resources.get("current_instance_type", ""))
    family, size = (found[1], int(found[2])) if found else ("", 0)
    if family in EFA_FROM and size >= EFA_FROM[family]:
        env.update({"FI_PROVIDER": "efa", "RDMAV_FORK_SAFE": "1"})
        if family.startswith(RDMA):
            env["FI_EFA_USE_DEVICE_RDMA"] = "1"
    return env


def _interface(resources: dict[str, Any]) -> str:
    return str(resources.get("network_interface_name") or "eth0")


def _num_gpus() -> int:
    return sum(1 for name in os.listdir("/dev") if DEVICE.fullmatch(name))


def _number(host: str) -> list[Any]:
    """Returns a sort key that puts algo-10 after algo-9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", host)]


def _config(name: str) -> dict[str, Any]:
    """Reads a configuration file of SageMaker; empty if the file does not exist."""
    try:
        with open(_path(f"input/config/{name}.json")) as file:
            found = json.load(file)
    except FileNotFoundError:
        found = {}
    return found if isinstance(found, dict) else {}


def _value(text: Any) -> Any:
    """Parses a hyperparameter as the training toolkit does: as JSON if it is valid JSON, else as text."""
    try:
        return json.loads(text)
    except (ValueError, TypeError):
        return text


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


if __name__ == "__main__":
    main()
