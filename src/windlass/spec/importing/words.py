"""Turns the words that a container starts with into fields of a job, by the code that reads command lines.

| words | job |
|---|---|
| `torchrun … train.py`, also behind `sh -c "cd x && …"` | `run: train.py`, with what its options say |
| `mpirun -np 4 … python train.py`, `horovodrun …` | `run: train.py`, `launcher: mpi` |
| `python train.py` | `run: train.py`, one rank on each node until something says otherwise |
| what only a shell can tell, other programs | `command: [...]`, `launcher: plain`: once on each node, as it stands |
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from windlass.errors import JobFileError, Problem
from windlass.spec.commandline import job_from_command, launcher_of
from windlass.spec.importing.shell import VARIABLE, expanded, filled, macros, read_line, script_of
from windlass.spec.job import kind_of, split_run
from windlass.spec.launchers import HOROVOD, MPIRUN, TORCHRUN, Options, read

_INITS: Final = ("tini", "dumb-init", "catatonit", "nohup", "time")
"""Programs that start another one and add nothing for the ranks."""
_IN_IMAGE: Final = "put job.yaml into the folder that has it, or write its path in the image, from the root"
_MPI: Final = (MPIRUN, HOROVOD)


@dataclass
class Start:
    """What is started, as fields of a job, and what of the words is left behind."""

    fields: dict[str, Any] = field(default_factory=dict)
    """`run` or `command`, and what stands with it; of numbers only those that the words name."""
    left: list[tuple[str, str, bool]] = field(default_factory=list)
    """What it meant, what to do instead, whether there is nothing to do."""
    by: str = "program"
    """Who starts the ranks: `torchrun`, `mpi`, `python` itself, or the words stand as they are: `program`."""
    ranks: int | None = None
    """Of `mpi`, how many there are over all nodes, where the words say so."""

    def leave(self, meaning: str, instead: str, *, is_ours: bool = False) -> None:
        """Note what is left behind."""
        self.left.append((meaning, instead, is_ours))


def start_of(
    words: Sequence[str],
    env: Mapping[str, str],
    folder: str | None = None,
    *,
    unknown: Collection[str] = (),
    code_travels: bool = False,
) -> Start:
    """What words start in a container with these variables, in this folder.

    `unknown` are variables that have a value in the cluster alone; `code_travels` is whether the script came with the
    job, as it does here, and was not in the image.
    """
    made = _start_of(words, env, folder, unknown, code_travels)
    names = [f"$({name})" for name in dict.fromkeys(macros(words)) if name not in env]
    if names and script_of(_unwrapped(list(words))) is None:  # a shell has a meaning of its own for them
        made.leave(
            f"{', '.join(names)}, which the cluster fills in",
            "let the script read it from its environment; JOB_COMPLETION_INDEX is NODE_RANK here",
        )
    return made


def _start_of(
    words: Sequence[str], env: Mapping[str, str], folder: str | None, unknown: Collection[str], code_travels: bool
) -> Start:
    is_shell = script_of(_unwrapped(list(words))) is not None
    known = {**env, **({name: f"${{{name}}}" for name in unknown} if is_shell else {})}
    words = _unwrapped([expanded(word, known) for word in words])
    script = script_of(words)
    if script is None:
        return _direct(words, env, folder, code_travels) or _as_it_stands(words, folder)
    line = read_line(script, lambda found: launcher_of(found) is not None)
    if line is not None:
        known = {**env, **line.env}
        inside = [filled(word, known) for word in line.words]
        made = _direct(inside, known, _below(folder, line.folder), code_travels)
        if made is not None and (not line.others or made.by == "mpi"):
            if line.env:
                made.fields["env"] = {**line.env, **made.fields.get("env", {})}
            for other in line.others:
                made.leave(f"`{_short(other)}` in the same line of the shell", "do it in the image or in the script")
            return made
    return _as_it_stands(words, folder)


def assumed_torchrun(args: Sequence[str]) -> bool:
    """Whether arguments alone are those of torchrun, which the image's own entry point must be."""
    parsed = read(TORCHRUN, args, "torchrun")
    is_script = bool(parsed.rest) and (parsed.rest[0].endswith(".py") or bool(parsed.flags & {"module", "no-python"}))
    return bool(parsed.kept) and is_script and args[0].startswith("-")


def _unwrapped(words: list[str]) -> list[str]:
    """Without programs in front that only start another."""
    while len(words) > 1 and _stem(words[0]) in _INITS:
        words = words[1:]
        while words[1:] and words[0].startswith("-"):
            is_end = words[0] == "--"
            words = words[1:]
            if is_end:
                break
    return words


def _direct(words: Sequence[str], env: Mapping[str, str], folder: str | None, code_travels: bool) -> Start | None:
    """What words start that need no shell; None where that cannot be told."""
    made = Start()
    launcher = launcher_of(words)
    named: dict[str, Any] = {}
    if launcher is not None:
        count, options = launcher
        kept, rest, problems, named = _tolerated(options, words[count:], _stem(words[count - 1]))
        if options in _MPI:
            kept = _with_values(kept, env, made)
            made.by, made.ranks = "mpi", named.get("procs_per_node")
            kept += [] if made.ranks is not None else ["-np", "1"]
        else:
            made.by = "torchrun"
        words = [*words[:count], *kept, *rest]
        for problem in problems:
            _say(made, problem)
        loose = rest
    else:
        loose = list(words)
    if any(VARIABLE.search(word) for word in loose):
        return None
    try:
        job = job_from_command(words, "job", env)
    except JobFileError:
        return None
    if job.command is not None:
        return None
    if launcher is None:
        made.by = "python"
    names = ("run", "launcher", "env", "python", "restarts", "grace")
    made.fields = {
        name: value for name, value in job.model_dump(mode="json", exclude_defaults=True).items() if name in names
    }
    made.fields |= {name: named[name] for name in ("nodes", "procs_per_node") if name in named and made.by != "mpi"}
    _place(made, folder, code_travels)
    return made


def _tolerated(
    options: Options, words: Sequence[str], program: str
) -> tuple[list[str], list[str], list[Problem], dict[str, Any]]:
    """The options that can be taken over, what they start, what is against the others, and what they say."""
    kept: list[str] = []
    problems: list[Problem] = []
    named: dict[str, Any] = {}
    rest = list(words)
    while True:
        parsed = read(options, rest, program)
        kept += parsed.kept
        problems += parsed.problems
        named |= parsed.fields
        rest = parsed.rest
        is_value = parsed.has_unknown and rest and not _starts(rest[0]) and any(map(_starts, rest[1:]))
        if not is_value:  # else the word belongs to the option before it, which nobody knows
            return kept, rest, problems, named
        rest = rest[1:]


def _starts(word: str) -> bool:
    return word.endswith(".py") or bool(re.fullmatch(r"(.*/)?(python[0-9.]*|[\w.-]+\.sh)|\./.*|-m", word))


def _with_values(kept: Sequence[str], env: Mapping[str, str], made: Start) -> list[str]:
    """mpirun's options without the variables that it would hand on, and of which no value is known."""
    found: list[str] = []
    at = 0
    while at < len(kept):
        if kept[at] == "-x" and at + 1 < len(kept):
            name = kept[at + 1]
            if "=" in name or name in env:
                found += kept[at : at + 2]
            else:
                made.leave(
                    f"-x {name} hands a variable of the launcher on", "each rank has those of its image", is_ours=True
                )
            at += 2
        else:
            found.append(kept[at])
            at += 1
    return found


def _say(made: Start, problem: Problem) -> None:
    """What an option was for that is left out."""
    by_replicas = "$" in problem.message  # a variable of its operator, which says what the manifest says
    meant = problem.hint.removeprefix("leave it out").strip(" :,")
    is_ours = by_replicas or problem.hint.startswith("leave it out") or "c10d or static" in problem.message
    if by_replicas:
        meaning, instead = f"{problem.field} is filled in by the operator", "the number of nodes and ranks says it"
    elif "c10d or static" in problem.message:
        meaning, instead = f"{problem.field} says by what service nodes meet", "Windlass brings its own"
    else:
        meaning, instead = f"{problem.field} {problem.message}", meant or problem.hint or "see the launcher's own help"
    made.leave(meaning, instead, is_ours=is_ours)


def _place(made: Start, folder: str | None, code_travels: bool) -> None:
    """Where the script is: in the image, where a path says so, else in the folder of the job file."""
    words = list(split_run(made.fields["run"]))
    kind = kind_of(tuple(words))
    name = words[1] if kind == "module" else words[0]
    if folder is not None:
        made.leave(f"ranks began in {folder}", "they begin in the folder of the code: give data paths from the root")
    if kind == "script" and folder is not None and not name.startswith("/"):
        words[0] = f"{folder.rstrip('/')}/{name.removeprefix('./')}"
        made.fields["run"] = shlex.join(words)
    if not words[0].startswith("/") and not code_travels:
        made.leave(f"{name} was found in the image; now it travels with the job file", _IN_IMAGE)


def _as_it_stands(words: Sequence[str], folder: str | None) -> Start:
    """Words that are started on each node as they are."""
    made = Start(by="program")
    script = script_of(words)
    if script is not None:
        words = [*words[:-1], script] if words[-1] == script else list(words)
    if folder is not None:
        words = ["sh", "-c", f'cd {shlex.quote(folder)} && exec "$0" "$@"', *words]
    made.fields = {"command": list(words), "launcher": "plain"}
    text = " ".join(words)
    starter = re.search(
        r"\b(torchrun|torch\.distributed\.(?:run|launch)|accelerate launch|deepspeed|mpirun|horovodrun)\b", text
    )
    if starter is not None:
        made.leave(
            f"{starter[1]} stays inside the command, which is started once on each node, as its only rank: RANK, "
            "WORLD_SIZE, MASTER_ADDR and MASTER_PORT say so",
            "to have Windlass start and watch all ranks, write what it starts as run: train.py with procs_per_node:",
        )
    if names := sorted(set(re.findall(r"\$\{?(PET_\w+|SKYPILOT_\w+|OMPI_\w+|TORCHX_\w+)", text))):
        made.leave(f"{', '.join(names)}: variables of its operator", "use RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT")
    return made


def _below(folder: str | None, name: str | None) -> str | None:
    if name is None or folder is None or name.startswith("/"):
        return name or folder
    return f"{folder.rstrip('/')}/{name}"


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}…"


def _stem(path: str) -> str:
    return path.rpartition("/")[2]
