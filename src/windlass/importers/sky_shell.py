"""Provides, in shell scripts of SkyPilot tasks, SkyPilot's variables and conda; reports use of docker, sudo and ssh."""

from __future__ import annotations

import re
from typing import Final

from windlass.importers.field_hints import Hint

NUM_NODES: Final = "SKYPILOT_NUM_NODES"
NUM_GPUS: Final = "SKYPILOT_NUM_GPUS_PER_NODE"
_SET: Final = {
    "SKYPILOT_NODE_RANK": '"$WINDLASS_NODE_RANK"',
    NUM_NODES: '"$WINDLASS_NUM_NODES"',
    "SKYPILOT_NODE_IPS": "\"${WINDLASS_HOSTS//,/$'\\n'}\"",
    "SKYPILOT_TASK_ID": '"$WINDLASS_RUN_ID"',
}
"""The value of each SkyPilot variable in shell syntax; the number of GPUs depends on the task."""
_IN_SETUP: Final = {"SKYPILOT_SETUP_NODE_RANK": "SKYPILOT_NODE_RANK", "SKYPILOT_SETUP_NODE_IPS": "SKYPILOT_NODE_IPS"}
_CONDA: Final = '. "$(conda info --base)/etc/profile.d/conda.sh"\n'
_PROFILE: Final = re.compile(r">>?\s*[\"']?((?:~|\$HOME|\$\{HOME\})/\.(?:bashrc|bash_profile|profile))\b")
_SUDO: Final = re.compile(r"(?m)(?:^|[;&|]|\bthen|\bdo)\s*sudo\b")
_DOCKER: Final = re.compile(r"(?m)(?:^|[;&|]|\bthen|\bdo)\s*(?:sudo\s+)?docker\s+(?:run|compose|build|pull)\b")
_OTHER_NODES: Final = re.compile(
    r"\bmpirun\b(?:\\\n|[^\n])*?\s(?:-{1,2}H|--?host(?:s|file)?)\b|\bdeepspeed\b(?:\\\n|[^\n])*?--hostfile\b|\bsrun\b"
)


def shell_command(script: str, gpus: int | None) -> list[str]:
    """Returns `bash -c` of a script, with the variables and functions that SkyPilot provides."""
    return ["bash", "-c", with_variables(script.strip(), gpus)]


def with_variables(script: str, gpus: int | None) -> str:
    """Prepends lines to the script that set SkyPilot's variables, and conda's shell function if the script uses it."""
    used = dict(_SET)
    if gpus is not None:
        used[NUM_GPUS] = str(gpus)
    used |= {name: used[other] for name, other in _IN_SETUP.items() if name in script}
    conda = _CONDA if re.search(r"\bconda\s+(?:de)?activate\b", script) and "conda.sh" not in script else ""
    exports = "".join(f"export {name}={value}\n" for name, value in used.items())
    return f"{exports}{conda}{script}"


def setup_of(setup: str, before: str) -> str:
    """Returns the script to run once per node before the ranks: the task's `setup`, and the first part of its `run`."""
    parts: list[str] = [part.strip() for part in (setup, before) if part.strip()]
    # With `(…) || exit`, a shell would ignore `set -e` inside the parentheses.
    return parts[0] if len(parts) == 1 else "\n".join(f"(\n{part}\n)\n[ $? -eq 0 ] || exit 1" for part in parts)


def findings(script: str, gpus: int | None) -> list[Hint]:
    """Returns hints on features of SkyPilot's machines that a script uses and pods lack."""
    found = []
    others = set(re.findall(r"\bSKYPILOT_\w+", script)) - {*_SET, *_IN_SETUP, *(() if gpus is None else (NUM_GPUS,))}
    if others:
        names = ", ".join(sorted(others))
        found.append(Hint(f"{names}: variables of SkyPilot that are not set here", "write their values as env:"))
    if "sky_workdir" in script:
        found.append(Hint("~/sky_workdir, the folder of the code", "scripts start in that folder: use paths below it"))
    if profile := _PROFILE.search(script):
        found.append(Hint(f"{profile[1]}: no shell here reads it before run:", "write what it sets as env:"))
    if _SUDO.search(script):
        found.append(Hint("sudo: nothing runs with rights of root here", "do it in the image"))
    if _DOCKER.search(script):
        found.append(Hint("docker: a pod starts no containers", "image: names the container that the ranks run in"))
    return found


def is_of_several_nodes(script: str) -> str | None:
    """Returns the program with which a script starts processes on other nodes over ssh; None if it starts none."""
    match = _OTHER_NODES.search(script)
    return match[0].split()[0] if match else None
