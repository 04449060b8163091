"""Rejects files of other tools that are given as a job, and suggests the right command."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from pathlib import Path
from typing import Any, Final

from windlass.errors import JobFileError, Problem, UsageError

_SKY: Final = frozenset((
    "name", "workdir", "num_nodes", "resources", "envs", "secrets", "file_mounts", "setup", "run", "service", "config",
    "volumes", "inputs", "outputs", "experimental",
))  # fmt: skip
"""Fields of a SkyPilot task."""
_ONLY_SKY: Final = frozenset(("workdir", "num_nodes", "envs", "file_mounts", "service"))
_ONLY_SKY_RESOURCES: Final = frozenset(("accelerators", "cloud", "infra", "use_spot", "any_of", "disk_size"))
_STARTERS: Final = ("torchrun", "accelerate", "deepspeed", "mpirun", "horovodrun", "fabric", "python", "python3")
_RANKS: Final = re.compile(r"--nproc[-_]per[-_]node[= ](\d+)")
_SLURM: Final = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)
_SLURM_NODES: Final = re.compile(r"(?:^-N\s*|--nodes[= ])(\d+)")
_SLURM_RANKS: Final = re.compile(r"(?:--ntasks-per-node[= ]|--gpus-per-node[= ](?:\w+:)?|--gres[= ]gpu:(?:\w+:)?)(\d+)")
_MOST_BYTES: Final = 64 * 1024


def of_another_tool(document: Any, shown: str, refused: JobFileError) -> Exception:
    """Returns the error for an invalid job file: for a file of another tool, a hint to the import command; else
    `refused`.
    """
    if not isinstance(document, dict):
        return refused
    if "apiVersion" in document and "kind" in document:
        what, option = f"a manifest of Kubernetes, {document['kind']}", ""
    elif "TrainingJobName" in document or "AlgorithmSpecification" in document:
        what, option = "a training job of SageMaker", ""
    elif "roles" in document:
        what, option = "an AppDef of TorchX", "--torchx "
    elif (found := _signs_of_sky(document)) > 1:
        what, option = "a task of SkyPilot", "--sky "
    elif found:  # one field of SkyPilot may be a mistake in a job file
        problem = Problem(shown, "", "looks like a task of SkyPilot", f"windlass import --sky {shlex.quote(shown)}")
        return JobFileError([*refused.problems, problem])
    else:
        return refused
    return UsageError(f"{shown} is {what}, and no job file", f"windlass import {option}{shlex.quote(shown)}")


def refuse_what_is_no_script(path: Path, shown: str) -> None:
    """Raises UsageError, with the right command, for a file that is neither Python nor executable."""
    if path.suffix == ".py":
        return
    with open(path, "rb") as file:
        text = file.read(_MOST_BYTES).decode(errors="replace")
    has_interpreter, name = text.startswith("#!"), shlex.quote(shown)
    asked = _SLURM.findall(text)
    launch = _launch(text, asked)
    if asked:
        fields = "the guide Coming from Slurm names the fields for #SBATCH"
        raise UsageError(
            f"{shown} is a batch script of Slurm, and no job file", f"{launch or 'windlass run SCRIPT'}; {fields}"
        )
    if os.access(path, os.X_OK) and (has_interpreter or path.suffix != ".sh"):
        return
    if path.suffix in (".sh", ".bash") or re.match(r"#!.*\b(ba|da|z|k)?sh\b", text):
        instead = f"; what it starts, with a log for each rank: {launch}" if launch else ""
        raise UsageError(f"{shown} is a shell script, and no job file", f"windlass run -- bash {name}{instead}")
    if path.suffix == ".json" and '"kind"' in text and '"apiVersion"' in text:
        raise UsageError(f"{shown} is a manifest of Kubernetes, and no job file", f"windlass import {name}")
    if path.suffix and not has_interpreter:
        raise UsageError(
            f"{shown} is neither a job file nor a script",
            "a job file ends in .yaml, a script in .py; another program: windlass run -- PROGRAM …",
        )


def _signs_of_sky(document: dict[str, Any]) -> int:
    """Returns the number of fields that exist only in SkyPilot; 0 if any field does not exist in SkyPilot."""
    resources = document.get("resources")
    inside = set(resources) if isinstance(resources, dict) else set()
    return len(_ONLY_SKY & set(document)) + len(_ONLY_SKY_RESOURCES & inside) if _SKY.issuperset(document) else 0


def _launch(text: str, asked: list[str]) -> str | None:
    """Returns the script's last command line that starts Python or a launcher; None without such a line."""
    for line in reversed(re.sub(r"\\\n", " ", text).splitlines()):
        words: list[str] = []
        with contextlib.suppress(ValueError):
            words = shlex.split(line, comments=True)
        begins = next((at for at, word in enumerate(words) if word.rpartition("/")[2] in _STARTERS), None)
        script = next((at for at, word in enumerate(words) if word.endswith(".py")), None)
        if begins is None or script is None or script < begins or {"|", "&&", ">"} & set(words):
            continue
        is_plain = words[begins].startswith("python")
        if not is_plain and not any("$" in word for word in words):
            return shlex.join(["windlass", "run", "--", *words[begins:]])
        few = " ".join(asked)
        nodes = _SLURM_NODES.search(few)
        ranks = _RANKS.search(line) or _SLURM_RANKS.search(few)
        options = [*(("--nodes", nodes[1]) if nodes else ()), *(("--procs-per-node", ranks[1]) if ranks else ())]
        arguments = words[script + 1 :]
        known = next((at for at, word in enumerate(arguments) if "$" in word), len(arguments))
        rest = ["--", *arguments[:known]] if arguments else []
        more = " …" if known < len(arguments) else ""
        return shlex.join(["windlass", "run", *options, words[script], *rest]) + more
    return None
