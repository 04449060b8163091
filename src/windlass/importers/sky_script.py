"""Converts the script of a SkyPilot task to a script per rank if it ends in torchrun, else to a script per node.

A script that runs once on a node and calls torchrun becomes a script that each rank runs. The lines before torchrun are
kept (environment activation, `cd`, variables), the line of torchrun becomes `exec python -u train.py`, and its options
become `nodes` and `procs_per_node`. Commands with side effects before torchrun, such as `pip install`, move to `setup`,
which runs once on each node. SkyPilot's variables are set from those of Windlass.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from windlass.importers.container_command import Start
from windlass.importers.field_hints import Hint
from windlass.importers.shell import filled
from windlass.importers.sky_shell import NUM_GPUS, NUM_NODES, findings, shell_command
from windlass.importers.statements import Statement, statements, words
from windlass.spec.commandline import launcher_of, stem
from windlass.spec.launchers import LAUNCH, TORCHRUN, Parsed, read
from windlass.spec.names import CONTRACT_ENV

_HARMLESS: Final = frozenset((
    "set", "unset", "export", "declare", "local", "readonly", "read", "shopt", "ulimit", "cd", "pushd", "popd",
    "source", ".", "conda", "deactivate", "module", "echo", "printf", "date", "pwd", "hostname", "whoami", "env",
    "printenv", "nvidia-smi", "ls", "cat", "head", "tail", "wc", "sed", "awk", "grep", "cut", "tr", "ip", "which",
    "type", "command", "mkdir", "sleep", "true", "false", ":", "[", "[[", "test", "exit", "return",
    "if", "then", "elif", "else", "fi", "for", "while", "until", "in", "do", "done",
))  # fmt: skip
"""Commands that each rank may repeat, because they only configure its shell or print."""
_READS: Final = frozenset((
    "echo", "printf", "head", "tail", "wc", "sed", "awk", "grep", "cut", "tr", "cat", "sort", "paste", "seq",
    "basename", "dirname", "realpath", "pwd", "ls", "ip", "nproc", "printenv", "expr",
    "nvidia-smi", "conda", "command", "which",
))  # fmt: skip
"""Commands with the same output on each call, so that each rank may call them."""
_SUBSTITUTED: Final = re.compile(r"(?:\$\((?!\()|`)\s*([^\s`()|;&]+)((?:[^`()]|\$\([^()]*\))*)")
_VARYING: Final = re.compile(r"\$(?:\$|RANDOM\b|SECONDS\b|BASHPID\b|EPOCH\w+)")
_EFFECTS: Final = re.compile(r"(?<![0-9&])>(?!&|\s*/dev/)|\bconda\s+(?:create|install|env|update|run)\b")
_STARTERS: Final = re.compile(
    r"\b(?:torchrun|torch\.distributed\.(?:run|launch)|accelerate\s+launch|deepspeed|mpirun|mpiexec|horovodrun)\b"
)
_ECHO: Final = re.compile(r"\b(?:(?:command\s+-v|which|type)\s+\S+|(?:echo|printf)\s+(?:\"[^\"]*\"|'[^']*'))")
_ASSIGNED: Final = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PIPED: Final = re.compile(r"\s*(?:2>&1)?\s*\|\s*tee\s+(?:-a\s+)?(\S+)$|\s*2>&1$")
_COUNTED: Final = re.compile(r"[`(]\s*echo\s+\"?\$\{?SKYPILOT_NODE_IPS\}?\"?\s*\|\s*wc\s+-l\s*[`)]")
_PRODUCT: Final = re.compile(r"\$\(\(\s*(\d+)\s*\*\s*(\d+)\s*\)\)")


@dataclass
class _Launched:
    """The torchrun line of a script."""

    statement: Statement
    parsed: Parsed
    command: str
    """Command that each rank runs instead of torchrun."""
    hints: list[Hint] = field(default_factory=list)


def start_of_script(script: str, num_nodes: int, gpus: int | None) -> tuple[Start, str]:
    """Parses the script of a task for nodes with this number of GPUs; returns the start and the script to run once per
    node.
    """
    values = {NUM_NODES: str(num_nodes), **({} if gpus is None else {NUM_GPUS: str(gpus)})}
    found = statements(script)
    launched = _launched(found, values) if found is not None else None
    made = Start(by="torchrun" if launched is not None else "program", text=script)
    before = ""
    if launched is not None and found is not None:
        text, before = _of_ranks(script, found, launched)
        made.fields = {"command": shell_command(text, gpus), "launcher": "pytorch"}
        for name in ("nodes", "procs_per_node"):
            if name in launched.parsed.fields:
                made.fields[name] = launched.parsed.fields[name]
        made.hints += launched.hints
        made.report("torchrun", "each rank runs this script, with python in the place of torchrun", is_handled=True)
    else:
        made.fields = {"command": shell_command(script, gpus), "launcher": "plain"}
        if starter := _STARTERS.search(script):
            made.report(
                f"{starter[0]} stays inside the script, which runs once on each node: Windlass sees one rank a node",
                "to have it start and watch all ranks: run: train.py, with nodes: and procs_per_node:",
            )
    made.hints += findings(script, gpus)
    return made, before


def _launched(found: Sequence[Statement], values: Mapping[str, str]) -> _Launched | None:
    """Returns the torchrun line whose ranks Windlass can start itself; None for no such line, or several."""
    known = dict(values)
    launching = [one for one in found if not one.is_compound and _words(one.text)[1:] and _launcher(one.text)]
    if len(launching) != 1:
        return None
    [line] = launching
    for one in found[: found.index(line)]:
        if one.is_compound and _starts_ranks(one):
            return None
        if not one.is_compound and (assigned := _ASSIGNED.fullmatch(one.text)):
            known[assigned[1]] = _value(assigned[2], known)
    if not all(_is_harmless(one) for one in found[found.index(line) + 1 :]):
        return None
    known = {name: value for name, value in known.items() if "$" not in value and "`" not in value}
    launched = _read(line, known)
    varying = any(_varies(one.text) for one in found[: found.index(line)])
    return None if varying or launched is None or _varies(launched.command) else launched


def _read(line: Statement, known: Mapping[str, str]) -> _Launched | None:
    """Parses a torchrun line; None if it has options that the ranks would lack."""
    text, piped = _PIPED.sub("", line.text), _PIPED.search(line.text)
    written = list(words(text))
    begins = next(at for at, (_, word) in enumerate(written) if not _ASSIGNED.fullmatch(word))
    try:
        argv = [" ".join(shlex.split(filled(word, known))) for _, word in written[begins:]]
    except ValueError:
        return None
    launcher = launcher_of(argv)
    if launcher is None or any(word[0] in "|&<>;()" for _, word in written):
        return None
    parsed = read(launcher.options, argv[launcher.num_words :], launcher.program)
    hints = []
    if piped is not None and piped[1] is not None:
        hints.append(
            Hint(f"tee {piped[1]} keeps the output of torchrun", "windlass logs RUN has that of each rank", True)
        )
    for problem in parsed.problems:
        if "$" not in problem.message and not problem.hint.startswith("leave it out"):
            return None
        hints.append(Hint(f"{problem.field} of torchrun", problem.hint or "Windlass sets it", is_handled=True))
    if parsed.dropped:
        hints.append(
            Hint(f"{', '.join(parsed.dropped)} of torchrun", "Windlass starts the ranks itself", is_handled=True)
        )
    hints += (Hint(remark.message, remark.fix or "nothing to do", not remark.fix) for remark in parsed.remarks)
    if not parsed.rest or parsed.settings or (parsed.fields.keys() - {"nodes", "procs_per_node", "local", "restarts"}):
        return None
    tail = text[written[begins + len(argv) - len(parsed.rest)][0] :]
    program = argv[0] if stem(argv[0]).startswith("python") else "python3"
    start = "" if "no-python" in parsed.flags else f"{program} -u {'-m ' if 'module' in parsed.flags else ''}"
    if launcher.options is LAUNCH and "use-env" not in parsed.flags:
        tail = re.sub(r"^(\S+)", r'\1 --local-rank="$LOCAL_RANK"', tail)
        hints.append(Hint("torch.distributed.launch passes --local-rank", "so does this line", is_handled=True))
    assigned = text[: written[begins][0]]
    return _Launched(line, parsed, f"{assigned}exec {start}{tail}", hints)


def _of_ranks(script: str, found: Sequence[Statement], launched: _Launched) -> tuple[str, str]:
    """Returns the script of each rank, and the script that runs once per node before it."""
    ahead = found[: found.index(launched.statement)]
    effects = [one for one in ahead if not _is_harmless(one)]
    text = script[: launched.statement.start]
    for one in reversed(effects):
        text = f"{text[: one.start]}:{text[one.end :]}"
    changed = [name for name in CONTRACT_ENV if re.search(rf"(?:^|[\s;]){name}=", text)]
    again = "".join(f'{name}="$WINDLASS_{name}" ' for name in changed)
    before = script[: effects[-1].end] if effects else ""
    if before and not re.match(r"(?:\s|\\\n)*&&", script[effects[-1].end :]):
        before += "\n:"  # without `set -e`, torchrun was started even if the last command failed
    return f"{text}{again}{launched.command}", before


def _is_harmless(one: Statement) -> bool:
    """Whether each rank may repeat a statement."""
    if _EFFECTS.search(_ECHO.sub("", one.text)) or _starts_ranks(one):
        return False
    begins = True
    for _, word in words(one.text):
        if word in ";&|()\n!":
            begins = True
        elif begins and not _ASSIGNED.fullmatch(word):
            if word not in _HARMLESS:
                return False
            begins = word in ("then", "else", "do", "if", "elif", "while", "until")
    return True


def _varies(text: str) -> bool:
    """Whether a statement computes a value that may differ between ranks: a time, a random name, a new folder."""
    piped = (
        stem(word)
        for match in _SUBSTITUTED.finditer(text)
        for word in (match[1], *re.findall(r"[|;&]\s*([^\s|;&]+)", match[2]))
    )
    return _VARYING.search(text) is not None or any(word not in _READS for word in piped)


def _starts_ranks(one: Statement) -> bool:
    """Whether a statement calls a launcher of ranks, as opposed to looking it up or printing its name."""
    return _STARTERS.search(_ECHO.sub("", one.text)) is not None


def _launcher(text: str) -> bool:
    argv = _words(text)
    while argv and _ASSIGNED.fullmatch(argv[0]):
        argv = argv[1:]
    launcher = launcher_of(argv) if argv else None
    return launcher is not None and launcher.options in (TORCHRUN, LAUNCH)


def _words(text: str) -> list[str]:
    return [word for _, word in words(text)]


def _value(text: str, known: Mapping[str, str]) -> str:
    """Returns the assigned value, with the variables that the task defines expanded."""
    if _COUNTED.search(text):
        return known[NUM_NODES]
    value = filled(text, known).strip("\"'")
    product = _PRODUCT.fullmatch(re.sub(r"\b([A-Z_]+)\b", lambda match: known.get(match[1], match[1]), value))
    return str(int(product[1]) * int(product[2])) if product else value
