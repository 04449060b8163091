"""Converts the command of a container into fields of a job, with the parsers of launcher command lines.

| words | job |
|---|---|
| `torchrun … train.py`, also inside `sh -c "cd x && …"` | `run: train.py`, with the fields that its options set |
| `mpirun -np 4 … python train.py`, `horovodrun …` | `run: train.py`, `launcher: mpi` |
| `python train.py` | `run: train.py`, one rank per node unless another field sets the number |
| scripts that need a shell, other programs | `command: [...]`, `launcher: plain`: once on each node, unchanged |
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from windlass.errors import JobFileError, Problem
from windlass.importers.field_hints import Hint, secret_hint
from windlass.importers.secret_words import secrets_in
from windlass.importers.shell import (
    VARIABLE,
    Line,
    expanded,
    filled,
    has_variable,
    joined,
    macros,
    name_in,
    read_line,
    script_of,
)
from windlass.spec.commandline import job_from_command, launcher_of, stem
from windlass.spec.launchers import HOROVOD, MPIRUN, TORCHRUN, Parsed, read, read_past_unknown
from windlass.spec.runline import join_run, kind_of, split_run

_INITS: Final = ("tini", "dumb-init", "catatonit", "nohup", "time")
"""Programs that only start another program and do not affect the ranks."""
_IN_IMAGE: Final = "put job.yaml into the folder that has it, or write its path in the image, from the root"
_MPI: Final = (MPIRUN, HOROVOD)
_STARTERS: Final = re.compile(
    r"\b(torchrun|torch\.distributed\.(?:run|launch)|accelerate launch|deepspeed|mpirun|horovodrun|tune run|composer"
    r"|ft_launcher)\b"
)
_LOGIN: Final = re.compile(r"\s(?:--?(?:token|password|api[-_]?key)\b|\blogin\s+[A-Za-z0-9_]{12,})")
_QUOTED: Final = re.compile(r'"[^"\n]*"')
_ONE_WORD: Final = re.compile(r"[^\s*?[]+")
_NODE_RANK: Final = re.compile(r"""(--node[-_]rank[= ]["']?)\$\(\([^()\n]*\)\)""")
"""A node rank that a shell computes for torchrun."""
_OF_LAUNCHER: Final = "-of-launcher-"
"""Placeholder for the node rank during parsing: a program with this placeholder as an argument needs the shell."""
_ARGUMENTS: Final = re.compile(r"ARG|OPT|FLAG|EXTRA", re.IGNORECASE)
_PLAIN_WORDS: Final = re.compile(r"[\w./:=,@%+ -]*")
"""Matches text without special characters of the shell, which means the same inside a script and in a variable."""
_OF_THE_SHELL: Final = frozenset(
    ("conda", "source", ".", "eval", "module", "ulimit", "unset", "umask", "alias", "pushd")
)
"""Commands that change the state of the shell, and so affect later commands."""


@dataclass
class Start:
    """A parsed command as fields of a job, with findings on options that the job cannot express."""

    fields: dict[str, Any] = field(default_factory=dict)
    """`run` or `command` and related fields; numbers of nodes and ranks only if the command sets them."""
    hints: list[Hint] = field(default_factory=list)
    by: str = "program"
    """Program that starts the ranks: `torchrun`, `mpi`, `python` itself, or any other `program`."""
    ranks: int | None = None
    """Total ranks of an mpirun line over all nodes; None if the line does not set them."""
    text: str = ""
    """The original command line."""

    def report(self, meaning: str, instead: str, is_handled: bool = False) -> None:
        """Reports a part of the command that a job cannot express."""
        self.hints.append(Hint(meaning, instead, is_handled))


@dataclass(frozen=True, slots=True)
class _Container:
    """The container in which a command was started."""

    env: Mapping[str, str]
    keep: frozenset[str]
    """Names in `env` that stay variables in the arguments of the script."""
    unset: Collection[str]
    """Names of variables that are empty until the user sets them."""
    folder: str | None
    code_travels: bool


def start_of(
    words: Sequence[str],
    env: Mapping[str, str],
    folder: str | None = None,
    *,
    unknown: Collection[str] = (),
    fixed: Collection[str] = (),
    unset: Collection[str] = (),
    code_travels: bool = False,
) -> Start:
    """Parses the command of a container with these variables and this working directory.

    `unknown` are variables whose value only the cluster has; `fixed` are variables of `env` that the job will not have,
    and `unset` are variables that are empty until the user sets them. All others stay variables in the arguments of the
    script, so that another value in the job's `env` takes effect. `code_travels` is whether the script was uploaded
    with the original job, as Windlass does, and was not part of the image.
    """
    keep = frozenset(env).difference(fixed)
    container = _Container(env, keep, unset, folder, code_travels)
    kept = {name: f"${{{name}}}" for name in keep if _ONE_WORD.fullmatch(env[name])}
    is_shell = script_of(_unwrapped(list(words))) is not None
    known = {**env, **({name: f"${{{name}}}" for name in unknown} | kept if is_shell else {})}
    argv = _unwrapped([expanded(word, known) for word in words])
    script = script_of(argv)
    if script is None:
        made = _direct(argv, _unwrapped([expanded(word, kept) for word in words]), container)
    else:
        ends_at_errors = any(re.fullmatch(r"-[a-z]*e[a-z]*", word) for word in argv[1:-1])
        made = _scripted(script, container, ends_at_errors=ends_at_errors)
    made = made or _as_it_stands(argv, folder)
    made.text = " ".join(words)
    names = [name for name in dict.fromkeys(macros(words)) if name not in known]
    names = [f"$({name})" for name in names if any(f"$({name})" in str(value) for value in made.fields.values())]
    if names and not is_shell:
        made.report(
            f"{', '.join(names)}, which the cluster fills in",
            "let the script read it from its environment; JOB_COMPLETION_INDEX is WINDLASS_NODE_RANK here",
        )
    elif names := [name for name in names if name.isupper()]:  # $(nproc) is a command substitution
        made.report(
            f"{', '.join(names)}: no variable of the manifest, so that the shell runs a command of that name",
            "write it as a variable of the shell, such as $WINDLASS_NUM_NODES",
        )
    return made


def _scripted(script: str, container: _Container, *, ends_at_errors: bool) -> Start | None:
    """Parses the script of `sh -c`; None if it needs a shell."""
    script = _NODE_RANK.sub(r"\1" + _OF_LAUNCHER, script)
    given = {name: value for name, value in container.env.items() if value or name not in container.unset}
    line = read_line(script, lambda found: launcher_of(found) is not None, given)
    several: dict[str, str] = {}
    if line is not None and (several := _of_several_words(script, line, container)):
        if not all(_PLAIN_WORDS.fullmatch(value) for value in several.values()):
            return None
        env = line.env
        line = read_line(filled(script, several), lambda found: launcher_of(found) is not None, given)
        if line is not None:
            line.env = env
    if line is None or any(map(_has_other_expansion, line.words)):
        return None
    if any(map(has_variable, [*line.env.values(), line.folder or ""])):  # `env:` and the path of a script expand none
        return None
    known, keep = {**container.env, **line.env}, container.keep.difference(line.env)
    folder = container.folder if line.folder is None else joined(container.folder, line.folder)
    written = [filled(word, known, keep) for word in line.words]
    container = replace(container, env=known, keep=keep, folder=folder)
    made = _direct([filled(word, known) for word in line.words], written, container)
    if made is None or _OF_LAUNCHER in str(made.fields):
        return None
    for name in several.keys() & keep:
        made.report(
            f"{name}, which is {'several words' if several[name] else 'empty, and no word'} in the command",
            f"another value in env: does not change the command: write ${name} in its place for one word",
        )
    if line.env:
        made.fields["env"] = {**line.env, **made.fields.get("env", {})}
    if line.dropped:
        made.report(
            f"{', '.join(f'`{_short(one)}`' for one in line.dropped)} in the same script",
            "dropped: the ranks do not need it",
            is_handled=True,
        )
    if made.by != "mpi" and (line.after or any(_is_of_the_shell(other) for other, _ in line.before)):
        return None
    _report_logins(made, line)
    if made.by == "mpi":  # these commands run only in the launcher's pod
        for other in (*(other for other, _ in line.before), *line.after):
            made.report(f"`{_short(other)}` in the same line of the shell", "setup: runs it on each machine before")
    if line.before and made.by != "mpi":
        made.fields["setup"] = _setup(line.before, ends_at_errors=ends_at_errors or line.ends_at_errors)
        if "|| true" in made.fields["setup"]:
            made.report(
                "a command before the ranks may fail", "they start all the same: || true in setup:", is_handled=True
            )
    return made


def _report_logins(made: Start, line: Line) -> None:
    """Reports the commands that contain a token, without the token, and removes them from the line."""

    def is_login(command: str) -> bool:
        # in `setup`, other secrets make the whole job refused
        return _LOGIN.search(command) is not None or (made.by == "mpi" and any(secrets_in(command)))

    for login in filter(is_login, (*(other for other, _ in line.before), *line.after)):
        words = login.split()
        named = [word.partition("=")[0] for word in words[2:] if word.startswith("--")]
        begins = words[:1] if any(secrets_in(" ".join(words[1:2]))) else words[:2]
        made.report(
            f"`{' '.join([*begins, *named])} …` with a token, which a job file does not hold",
            secret_hint("WANDB_API_KEY" if "wandb" in login else "HF_TOKEN"),
        )
    line.before = [(other, is_needed) for other, is_needed in line.before if not is_login(other)]
    line.after = [other for other in line.after if not is_login(other)]


def _setup(before: Sequence[tuple[str, bool]], *, ends_at_errors: bool) -> str:
    """Returns a script of these commands that fails if the original would not have reached the command that starts
    ranks.
    """
    if ends_at_errors:
        return "set -e\n" + "".join(f"({command})\n" for command, _ in before)
    lines: list[str] = []
    chain: list[str] = []
    for command, is_needed in before:
        chain.append(f"({command})")
        if not is_needed:
            lines.append(f"{' && '.join(chain)} || true\n")
            chain = []
    return "".join([*lines, *(f"{one} || exit\n" for one in chain)])


def _of_several_words(script: str, line: Line, container: _Container) -> dict[str, str]:
    """Returns the variables that a shell splits into several words or none: `$ARGS` outside of quotes.

    Variables that the user has to set count as one word, except for names such as EXTRA_ARGS.
    """
    unquoted = set(map(name_in, VARIABLE.finditer(_QUOTED.sub("", script))))
    used = {name_in(match) for word in line.words for match in VARIABLE.finditer(word)}
    known = {**container.env, **line.env}
    one = {name for name in container.unset if not known.get(name) and not _ARGUMENTS.search(name)}
    several = (used & unquoted & known.keys()) - one
    return {name: known[name] for name in several if not _ONE_WORD.fullmatch(known[name])}


def _has_other_expansion(word: str) -> bool:
    """Whether a word has an expansion that `filled` keeps, such as `${NAME%.pt}`."""
    return "${" in VARIABLE.sub("", word)


def _is_of_the_shell(command: str) -> bool:
    """Whether a command has another effect in a separate shell."""
    return bool(re.search(r"[*?~$]", command)) or command.rpartition("&& ")[2].split()[0] in _OF_THE_SHELL


def assumed_torchrun(args: Sequence[str]) -> bool:
    """Whether arguments without a command are options of torchrun, the assumed entry point of the image."""
    parsed = read(TORCHRUN, args, "torchrun")
    is_script = bool(parsed.rest) and (parsed.rest[0].endswith(".py") or bool(parsed.flags & {"module", "no-python"}))
    is_known = bool(parsed.fields or parsed.flags) or not parsed.has_unknown
    return is_known and is_script and args[0].startswith("-")


def names_a_program(words: Sequence[str]) -> bool:
    """Whether the first word is certainly a program: without a command, words may be arguments of the image's entry
    point.
    """
    if launcher_of(words) is not None or script_of(words) is not None:
        return True
    return not words[0].endswith(".py") and bool(re.fullmatch(r"/.*|\./.*|python[0-9.]*|[\w.-]+\.sh", words[0]))


def _unwrapped(words: list[str]) -> list[str]:
    """Removes programs that only start another program from the start of the command."""
    while len(words) > 1 and stem(words[0]) in _INITS:
        words = words[1:]
        while words[1:] and words[0].startswith("-"):
            is_end = words[0] == "--"
            words = words[1:]
            if is_end:
                break
    return words


def _direct(words: Sequence[str], written: Sequence[str], container: _Container) -> Start | None:
    """Parses a command that needs no shell; None if it cannot be parsed.

    `written` are the same words with the variables that the arguments of the script keep.
    """
    made = Start(by="python")
    launcher = launcher_of(words)
    parsed = Parsed(rest=list(words))
    if launcher is not None:
        parsed = read_past_unknown(launcher.options, words[launcher.num_words :], launcher.program)
        parsed.has_unknown = False
        made.hints += map(_finding, parsed.problems)
        made.hints += (Hint(remark.message, remark.fix or "nothing to do", not remark.fix) for remark in parsed.remarks)
        parsed.problems.clear()
        if dropped := [*parsed.dropped, *(f"--{name}" for name in parsed.settings if name.endswith("_port"))]:
            made.report(f"{', '.join(dropped)} of the launcher", "Windlass starts the ranks itself", is_handled=True)
        made.by = "torchrun"
        if launcher.options in _MPI:
            made.by, made.ranks = "mpi", parsed.fields.get("procs_per_node")
            parsed.fields.setdefault("procs_per_node", 1)
            for name in [name for name in parsed.exported if name not in container.env]:
                made.report(
                    f"-x {name} exports a variable of the launcher",
                    "each rank has the variables of its image",
                    is_handled=True,
                )
                parsed.exported.remove(name)
    if any(map(has_variable, parsed.rest)):
        return None
    try:
        job = job_from_command(words, "job", container.env, parsed if launcher is not None else None)
    except JobFileError:
        return None
    if job.command is not None:
        return None
    names = ("run", "launcher", "env", "python", "restarts", "grace")
    made.fields = {
        name: value for name, value in job.model_dump(mode="json", exclude_defaults=True).items() if name in names
    }
    if made.by != "mpi":
        made.fields |= {name: parsed.fields[name] for name in ("nodes", "procs_per_node") if name in parsed.fields}
        made.fields |= {"restarts": {"max": parsed.fields["restarts"]}} if "restarts" in parsed.fields else {}
    _place(made, container.folder, container.code_travels)
    if made.by != "mpi" or container.code_travels:  # the ranks do not get all variables of the launcher's pod
        _keep(made, words, written, container.keep)
    return made


def _keep(made: Start, words: Sequence[str], written: Sequence[str], keep: Collection[str]) -> None:
    """Restores the original variables in the arguments of the script."""
    run = list(split_run(made.fields["run"]))
    for at in range(1, len(run) - (run[0] == "-m")):
        if run[-at] != words[-at]:
            break
        run[-at] = written[-at]
    made.fields["run"] = join_run(run, list(keep))


def _finding(problem: Problem) -> Hint:
    """Returns the finding on an option that a job cannot express."""
    if "$" in problem.message:  # a variable of the operator for a number that the manifest sets
        return Hint(f"{problem.field} is filled in by the operator", "nodes: and procs_per_node: set it", True)
    meant = problem.hint.removeprefix("leave it out").strip(" :,")
    instead = meant or problem.hint or "see the launcher's own help"
    return Hint(f"{problem.field} {problem.message}", instead, problem.hint.startswith("leave it out"))


def _place(made: Start, folder: str | None, code_travels: bool) -> None:
    """Sets the path of the script: in the image if it is absolute, else relative to the job file."""
    words = list(split_run(made.fields["run"]))
    kind = kind_of(tuple(words))
    name = words[1] if kind == "module" else words[0]
    if folder is not None:
        made.report(f"working directory {folder}", "ranks start in the folder of the code: use absolute paths for data")
    if kind == "script" and folder is not None and not name.startswith("/"):
        words[0] = joined(folder, name.removeprefix("./"))
        made.fields["run"] = shlex.join(words)
    travels = kind != "program" or "/" in words[0]  # other programs are found by PATH
    if travels and not words[0].startswith("/") and not code_travels:
        made.report(f"{name} was found in the image; now it travels with the job file", _IN_IMAGE)


def _as_it_stands(words: Sequence[str], folder: str | None) -> Start:
    """Returns the command for each node, unchanged."""
    made = Start()
    if folder is not None:
        words = ["sh", "-c", f'cd {shlex.quote(folder)} && exec "$0" "$@"', *words]
    made.fields = {"command": list(words), "launcher": "plain"}
    text = " ".join(words)
    starter = _STARTERS.search(text)
    if starter is not None:
        made.report(
            f"{starter[1]} stays inside the command, which is started once on each node and starts the ranks itself",
            "to have Windlass start and watch all ranks, write what it starts as run: train.py with procs_per_node:",
        )
    return made


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}…"
