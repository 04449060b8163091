"""Parses the options of torchrun, mpirun, horovodrun and accelerate into fields of a job, by one table each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windlass.errors import JobFileError, Problem, near
from windlass.spec.places import found
from windlass.spec.units import parse_duration

WHERE = "command line"
"""The location of problems in a command line, in place of file and line."""


def problem(option: str, message: str, hint: str = "") -> Problem:
    """A problem of a command line; `option` is the one that causes it."""
    return Problem(WHERE, option, message, hint)


@dataclass
class Parsed:
    """The parsed part of a command line."""

    fields: dict[str, Any] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    exported: list[str] = field(default_factory=list)
    """Variables whose value the caller's environment has."""
    problems: list[Problem] = field(default_factory=list)
    has_unknown: bool = False
    """Whether there was an unknown option, whose value the first word of `rest` may be."""
    rest: list[str] = field(default_factory=list)
    """The script or program and its arguments."""

    def refuse_if_any(self) -> None:
        """Raises `JobFileError` with all problems."""
        if self.problems:
            raise JobFileError(self.problems)


@dataclass(frozen=True)
class Option:
    """What one option does to the job."""

    values: int
    """Words that follow it."""
    take: Callable[[Parsed, tuple[str, ...]], None] | None
    """Sets the fields; raises `ValueError` with what was expected. None for an option that is not supported."""
    instead: str = ""
    """What to do instead of an option that is not supported."""


@dataclass(frozen=True)
class Options:
    """The options of one launcher, by their names without dashes."""

    known: Mapping[str, Option]
    single_dash: bool = False
    """Whether long options may have one dash, as in `mpirun -bind-to none`."""
    first: tuple[str, ...] = ()
    """Flags that are set from the start."""


def read(options: Options, words: Sequence[str], program: str, parsed: Parsed | None = None) -> Parsed:
    """Parses options up to the first other word, and adds them to `parsed`; errors are collected in `problems`."""
    parsed = parsed or Parsed(flags=set(options.first))
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--" or not word.startswith("-") or word == "-":
            at += word == "--"
            break
        at += 1
        spelled, equals, inline = word.partition("=") if word.startswith("--") else (word, "", "")
        option = options.known.get(_key(spelled, options))
        if option is None and not word.startswith("--") and (option := options.known.get(word[1])):
            # One letter with its value behind it: -r3, -np4.
            spelled, inline, equals = word[:2], word[2:], "="
        if option is None:
            names = (f"--{name}" if len(name) > 1 else f"-{name}" for name in options.known)
            parsed.has_unknown = True
            parsed.problems.append(problem(spelled, f"is not an option of {program}", near(spelled, names)))
            continue
        given = (inline,) if equals else tuple(words[at : at + option.values])
        at += 0 if equals else option.values
        if option.take is None:
            parsed.problems.append(problem(spelled, "is not supported", option.instead))
        elif len(given) != option.values:
            some = f"{option.values or 'no'} value{'s' * (option.values > 1)}"
            parsed.problems.append(problem(spelled, f"takes {some}"))
        else:
            try:
                option.take(parsed, given)
            except ValueError as error:
                parsed.problems.append(problem(spelled, str(error)))
    parsed.rest = list(words[at:])
    return parsed


def _key(spelled: str, options: Options) -> str:
    """The key of an option: `_` and `-` are the same, and `-np` is a long option only for MPI."""
    name = spelled.lstrip("-")
    if spelled.startswith("--") or len(name) == 1 or options.single_dash:
        return name.replace("_", "-")
    return f"-{name}"


def _number(word: str, least: int = 0) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", word) or int(word) < least:
        raise ValueError(f"expected a whole number from {least}, found {found(word)}")
    return int(word)


def _count(name: str, least: int = 0) -> Option:
    def take(parsed: Parsed, words: tuple[str, ...]) -> None:
        parsed.fields[name] = _number(words[0], least)

    return Option(1, take)


def _flag(name: str) -> Option:
    return Option(0, lambda parsed, _: parsed.flags.add(name))


def _ours(values: int) -> Option:
    """An option that is accepted and dropped: Windlass does the same itself."""
    return Option(values, lambda _parsed, _words: None)


def _nodes(parsed: Parsed, words: tuple[str, ...]) -> None:
    low, colon, high = words[0].partition(":")
    least = _number(low, 1)
    parsed.fields["nodes"] = {"min": least, "max": _number(high, 1)} if colon else least


def _ranks(parsed: Parsed, words: tuple[str, ...]) -> None:
    if words[0] in ("cpu", "xpu"):
        raise ValueError(f"{words[0]} is not known here; write the number of ranks")
    parsed.fields["procs_per_node"] = "auto" if words[0] in ("auto", "gpu") else _number(words[0], 1)


def _port(parsed: Parsed, words: tuple[str, ...]) -> None:
    parsed.fields["local"] = {"port": _number(words[0], 1)}


def _backend(_: Parsed, words: tuple[str, ...]) -> None:
    if words[0] not in ("c10d", "static"):
        raise ValueError(f"expected c10d or static, found {found(words[0])}")


def _grace(parsed: Parsed, words: tuple[str, ...]) -> None:
    try:
        parsed.fields["grace"] = parse_duration(words[0])
    except ValueError:
        raise ValueError(f"expected seconds, found {found(words[0])}") from None


def _export(parsed: Parsed, words: tuple[str, ...]) -> None:
    name, equals, value = words[0].partition("=")
    if equals:
        parsed.fields.setdefault("env", {})[name] = value
    else:
        parsed.exported.append(name)


def _mca(parsed: Parsed, words: tuple[str, ...]) -> None:
    # Open MPI reads each parameter from a variable of this name too, and that variable travels with the job.
    parsed.fields.setdefault("env", {})[f"OMPI_MCA_{words[0]}"] = words[1]


def _precision(parsed: Parsed, words: tuple[str, ...]) -> None:
    parsed.fields.setdefault("env", {})["ACCELERATE_MIXED_PRECISION"] = words[0]


def _refused(values: int, instead: str, *names: str) -> dict[str, Option]:
    """Options that are not supported."""
    return dict.fromkeys(names, Option(values, None, instead))


_OWN_LOGS = "leave it out: the run keeps the log of every rank, and `windlass logs` shows them"
_NO_USE = "leave it out: Windlass starts and supervises the ranks itself"
_HOSTS = "leave it out: the target knows its machines, and nodes: says how many"
_BINDING = "leave it out: Windlass sets the placement of ranks"
_TORCHRUN = {
    "nnodes": Option(1, _nodes),
    "nproc-per-node": Option(1, _ranks),
    "max-restarts": _count("restarts"),
    "shutdown-timeout": Option(1, _grace),
    "standalone": _flag("standalone"),
    **dict.fromkeys(("m", "module"), _flag("module")),
    "no-python": _flag("no-python"),
    "rdzv-backend": Option(1, _backend),
    **dict.fromkeys(("rdzv-endpoint", "rdzv-id", "rdzv-conf", "node-rank", "master-addr"), _ours(1)),
    "master-port": Option(1, _port),
    **_refused(1, _OWN_LOGS, "log-dir", "redirects", "r", "tee", "t", "log-line-prefix-template"),
    **_refused(1, _OWN_LOGS, "local-ranks-filter", "duplicate-stdout-filters", "duplicate-stderr-filters"),
    **_refused(1, _NO_USE, "monitor-interval", "start-method", "role", "logs-specs", "event-log-handler"),
    **_refused(1, "leave it out: the target knows the addresses of its nodes", "local-addr"),
    **_refused(1, "leave it out: ranks are not bound to parts of a machine", "numa-binding"),
    **_refused(1, "leave it out: SIGTERM reaches every rank, and grace: says how long it has", "signals-to-handle"),
    **_refused(0, "leave it out: each rank is a process of its own", "run-path"),
    **_refused(0, "leave it out: LOCAL_RANK is what torchrun sets without it", "virtual-local-rank"),
    **_refused(1, "see `windlass completion`", "print-completion"),
    **_refused(0, "see `windlass run --help`", "help", "h"),
}
TORCHRUN = Options(_TORCHRUN)
LAUNCH = Options({**_TORCHRUN, "use-env": _flag("use-env")}, first=("launch",))
MPIRUN = Options(
    {
        **dict.fromkeys(("np", "n", "c"), _count("procs_per_node", 1)),
        "x": Option(1, _export),
        "mca": Option(2, _mca),
        **dict.fromkeys(("oversubscribe", "allow-run-as-root"), _ours(0)),
        **_refused(1, _HOSTS, "H", "host", "hosts", "hostfile", "machinefile", "default-hostfile"),
        **_refused(1, _BINDING, "bind-to", "map-by", "rank-by", "npernode", "N", "ppr", "rankfile", "cpus-per-rank"),
        **_refused(0, _BINDING, "bind-to-core", "bind-to-socket", "bind-to-none", "bynode", "byslot"),
        **_refused(0, _OWN_LOGS, "tag-output", "timestamp-output"),
        **_refused(1, _OWN_LOGS, "output-filename", "output"),
        **_refused(1, "leave it out: code: says which folder the ranks start in", "wdir", "wd"),
        **_refused(1, "leave it out: the image or the machine has its MPI", "prefix"),
        **_refused(1, "leave it out, and write timeout: in the job", "timeout"),
        **_refused(0, "leave it out", "verbose", "v", "quiet", "q", "help", "h", "version", "V"),
    },
    single_dash=True,
)
HOROVOD = Options(
    {
        **dict.fromkeys(("np", "num-proc"), _count("procs_per_node", 1)),
        **dict.fromkeys(("mpi", "verbose"), _ours(0)),
        **_refused(1, _HOSTS, "H", "hosts", "hostfile"),
        **_refused(0, "leave it out: Windlass starts Horovod by MPI", "gloo"),
        **_refused(1, "Horovod is not elastic under MPI", "min-np", "max-np", "host-discovery-script"),
        **_refused(1, "leave it out: no ssh is used", "ssh-port", "p", "ssh-identity-file", "i"),
    },
    single_dash=True,
)
ACCELERATE = Options(
    {
        "num-processes": _count("processes", 1),
        "num-machines": _count("nodes", 1),
        "mixed-precision": Option(1, _precision),
        **dict.fromkeys(("machine-rank", "main-process-ip", "rdzv-backend"), _ours(1)),
        **dict.fromkeys(("multi-gpu", "same-network"), _ours(0)),
        "main-process-port": Option(1, _port),
        "max-restarts": _count("restarts"),
        **dict.fromkeys(("m", "module"), _flag("module")),
        "no-python": _flag("no-python"),
        **_refused(1, "write what it says as options; the file does not travel with the job", "config-file"),
        **_refused(0, "set it up in the script", "use-deepspeed", "use-fsdp", "use-megatron-lm", "tpu", "cpu"),
        **_refused(1, "call torch.compile in the script", "dynamo-backend"),
        **_refused(1, "leave it out: resources: says how many GPUs", "gpu-ids"),
        **_refused(1, "set it in the script", "gradient-accumulation-steps"),
    },
)
