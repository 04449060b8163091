"""Turns the options of torchrun, mpirun, horovodrun and accelerate into fields of a job, by one table for each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windlass.errors import JobFileError, Problem
from windlass.spec.problems import found, near
from windlass.spec.units import parse_duration

WHERE = "command line"
"""What stands where a file has its name and line."""


def problem(option: str, message: str, hint: str = "") -> Problem:
    """A problem of a command line; `option` is the one that causes it."""
    return Problem(WHERE, option, message, hint)


@dataclass
class Parsed:
    """What was read from a command line so far."""

    fields: dict[str, Any] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    exported: list[str] = field(default_factory=list)
    """Variables whose value the caller's environment has."""
    problems: list[Problem] = field(default_factory=list)
    has_unknown: bool = False
    """Whether an option was not known, so that the word behind it may be its value."""
    kept: list[str] = field(default_factory=list)
    """The options that were taken over, with their values, as they were written."""
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
    take: Callable[[Parsed, tuple[str, ...]], None]
    """Writes it down; raises `ValueError` with what was expected."""


@dataclass(frozen=True)
class Options:
    """The options of one launcher, by their names without dashes."""

    taken: Mapping[str, Option]
    refused: Mapping[str, tuple[int, str]]
    """Those that would be lost: how many words follow, and what to do instead."""
    single_dash: bool = False
    """Whether long options may have one dash, as in `mpirun -bind-to none`."""
    first: tuple[str, ...] = ()
    """Flags that are set from the start."""


def read(options: Options, words: Sequence[str], program: str) -> Parsed:
    """Reads options up to the first word that is none; what is wrong is collected in `problems`."""
    parsed = Parsed(flags=set(options.first))
    at = 0
    while at < len(words):
        word, begun = words[at], at
        if word == "--" or not word.startswith("-") or word == "-":
            at += word == "--"
            break
        at += 1
        spelled, equals, inline = word.partition("=") if word.startswith("--") else (word, "", "")
        key = _key(spelled, options)
        values, hint = options.refused.get(key, (-1, ""))
        option = options.taken.get(key)
        if option is None and values < 0 and not word.startswith("--") and len(word) > 2:
            # One letter with its value behind it: -r3, -np4.
            option, inline, equals = options.taken.get(word[1]), word[2:], "="
            values, hint = options.refused.get(word[1], (-1, ""))
            spelled = word[:2] if option or values >= 0 else spelled
        if option is None and values < 0:
            names = (f"--{name}" if len(name) > 1 else f"-{name}" for name in (*options.taken, *options.refused))
            parsed.has_unknown = True
            parsed.problems.append(problem(spelled, f"is not an option of {program}", near(spelled, names)))
            continue
        wanted = option.values if option else values
        given = (inline,) if equals else tuple(words[at : at + wanted])
        at += 0 if equals else wanted
        if option is None:
            parsed.problems.append(problem(spelled, "cannot be taken over", hint))
        elif len(given) != wanted:
            parsed.problems.append(problem(spelled, f"takes {wanted or 'no'} value{'s' * (wanted > 1)}"))
        else:
            try:
                option.take(parsed, given)
                parsed.kept += words[begun:at]
            except ValueError as error:
                parsed.problems.append(problem(spelled, str(error)))
    parsed.rest = list(words[at:])
    return parsed


def _key(spelled: str, options: Options) -> str:
    """`--nproc_per_node` and `--nproc-per-node` are one option; `-np` is a long one only to MPI."""
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
    """An option whose work Windlass does itself."""
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


_OWN_LOGS = "leave it out: the run keeps the log of every rank, and `windlass logs` shows them"
_NO_USE = "leave it out: Windlass starts and watches the ranks itself"
_RENDEZVOUS = {
    "rdzv-backend": Option(1, _backend),
    "rdzv-endpoint": _ours(1),
    "rdzv-id": _ours(1),
    "rdzv-conf": _ours(1),
    "node-rank": _ours(1),
    "master-addr": _ours(1),
    "master-port": Option(1, _port),
}
_TORCHRUN = {
    "nnodes": Option(1, _nodes),
    "nproc-per-node": Option(1, _ranks),
    "max-restarts": _count("restarts"),
    "shutdown-timeout": Option(1, _grace),
    "standalone": _flag("standalone"),
    "m": _flag("module"),
    "module": _flag("module"),
    "no-python": _flag("no-python"),
    **_RENDEZVOUS,
}
_TORCHRUN_REFUSED = {
    **dict.fromkeys(("log-dir", "redirects", "r", "tee", "t", "log-line-prefix-template"), (1, _OWN_LOGS)),
    **dict.fromkeys(("local-ranks-filter", "duplicate-stdout-filters", "duplicate-stderr-filters"), (1, _OWN_LOGS)),
    **dict.fromkeys(("monitor-interval", "start-method", "role", "logs-specs", "event-log-handler"), (1, _NO_USE)),
    "local-addr": (1, "leave it out: the target knows the addresses of its nodes"),
    "numa-binding": (1, "leave it out: ranks are not bound to parts of a machine"),
    "signals-to-handle": (1, "leave it out: SIGTERM reaches every rank, and grace: says how long it has"),
    "run-path": (0, "leave it out: each rank is a process of its own"),
    "virtual-local-rank": (0, "leave it out: LOCAL_RANK is what torchrun sets without it"),
    "print-completion": (1, "see `windlass completion`"),
    **dict.fromkeys(("help", "h"), (0, "see `windlass run --help`")),
}
TORCHRUN = Options(_TORCHRUN, _TORCHRUN_REFUSED)
LAUNCH = Options({**_TORCHRUN, "use-env": _flag("use-env")}, _TORCHRUN_REFUSED, first=("launch",))

_HOSTS = (1, "leave it out: the target knows its machines, and nodes: says how many")
_BINDING = (1, "leave it out: Windlass tells mpirun where ranks go")
_MPI_COUNT = _count("procs_per_node", 1)
_MPI = {**dict.fromkeys(("np", "n", "c"), _MPI_COUNT), "x": Option(1, _export), "mca": Option(2, _mca)}
MPIRUN = Options(
    {**_MPI, **dict.fromkeys(("oversubscribe", "allow-run-as-root"), _ours(0))},
    {
        **dict.fromkeys(("H", "host", "hosts", "hostfile", "machinefile", "default-hostfile"), _HOSTS),
        **dict.fromkeys(
            ("bind-to", "map-by", "rank-by", "npernode", "N", "ppr", "rankfile", "cpus-per-rank"), _BINDING
        ),
        **dict.fromkeys(("bind-to-core", "bind-to-socket", "bind-to-none", "bynode", "byslot"), (0, _BINDING[1])),
        **dict.fromkeys(("tag-output", "timestamp-output"), (0, _OWN_LOGS)),
        **dict.fromkeys(("output-filename", "output"), (1, _OWN_LOGS)),
        **dict.fromkeys(("wdir", "wd"), (1, "leave it out: code: says which folder the ranks start in")),
        "prefix": (1, "leave it out: the image or the machine has its MPI"),
        "timeout": (1, "leave it out, and write timeout: in the job"),
        **dict.fromkeys(("verbose", "v", "quiet", "q", "help", "h", "version", "V"), (0, "leave it out")),
    },
    single_dash=True,
)
HOROVOD = Options(
    {**dict.fromkeys(("np", "num-proc"), _MPI_COUNT), **dict.fromkeys(("mpi", "verbose"), _ours(0))},
    {
        **dict.fromkeys(("H", "hosts", "hostfile"), _HOSTS),
        "gloo": (0, "leave it out: Windlass starts Horovod by MPI"),
        **dict.fromkeys(("min-np", "max-np", "host-discovery-script"), (1, "Horovod is not elastic under MPI")),
        **dict.fromkeys(("ssh-port", "p", "ssh-identity-file", "i"), (1, "leave it out: no ssh is used")),
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
    },
    {
        "config-file": (1, "write what it says as options; the file does not travel with the job"),
        **dict.fromkeys(("use-deepspeed", "use-fsdp", "use-megatron-lm", "tpu", "cpu"), (0, "set it up in the script")),
        "dynamo-backend": (1, "call torch.compile in the script"),
        "gpu-ids": (1, "leave it out: resources: says how many GPUs"),
        "gradient-accumulation-steps": (1, "set it in the script"),
    },
)
