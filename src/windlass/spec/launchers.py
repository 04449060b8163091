"""Parses the options of torchrun, mpirun, horovodrun, deepspeed and Fabric into fields of a job, by one table each.

The options of accelerate are in `accelerate.py`, because they may also be set in a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from windlass.errors import JobFileError, Problem, near
from windlass.spec.positions import found
from windlass.spec.units import parse_duration

WHERE = "command line"
"""Text that names the command line as the location of a problem, in place of file and line."""


def problem(option: str, message: str, hint: str = "") -> Problem:
    """Returns a problem of a command line; `option` is the option that causes the problem."""
    return Problem(WHERE, option, message, hint)


class Remark(NamedTuple):
    """A note for the author of a command line, shown before the job runs."""

    code: str
    """Stable name: `option-dropped`."""
    message: str
    fix: str


@dataclass
class Parsed:
    """Result of parsing the options of a launcher."""

    fields: dict[str, Any] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    settings: dict[str, Any] = field(default_factory=dict)
    """Options that become environment variables of the ranks, by name."""
    exported: list[str] = field(default_factory=list)
    """Variables whose values are taken from the caller's environment."""
    dropped: list[str] = field(default_factory=list)
    """Options that are dropped because Windlass has the same effect by itself."""
    problems: list[Problem] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    has_unknown: bool = False
    """Whether an option was unknown; the first word of `rest` may be the value of this option."""
    rest: list[str] = field(default_factory=list)
    """Words after the options: the script or program, and its arguments."""

    def refuse_if_any(self) -> None:
        """Raises `JobFileError` with all problems."""
        if self.problems:
            raise JobFileError(self.problems)


@dataclass(frozen=True)
class Option:
    """The effect of one option of a launcher on the job."""

    values: int
    """Number of values, the words after the option that belong to the option."""
    take: Callable[[Parsed, tuple[str, ...]], None] | None
    """Function that sets fields of the job, or raises `ValueError` with the expected value; None for an unsupported
    option."""
    instead: str = ""
    """What the user can do instead of an unsupported option."""
    remark: str = ""
    """Why an accepted option has no effect, if the user may expect an effect."""
    is_handled: bool = False
    """Whether the option is dropped because Windlass has the same effect by itself."""


@dataclass(frozen=True)
class Options:
    """The options of one launcher, keyed by name without dashes."""

    known: Mapping[str, Option]
    single_dash: bool = False
    """Whether long options may start with one dash, as in `mpirun -bind-to none`."""
    first: tuple[str, ...] = ()
    """Flags that are set by default."""


def read(options: Options, words: Sequence[str], program: str, parsed: Parsed | None = None) -> Parsed:
    """Parses options up to the first word that is no option. Adds results to `parsed`, and errors to
    `parsed.problems`.
    """
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
            # The value may be attached to a short option: -r3, -np4.
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
            if option.is_handled:
                parsed.dropped.append(spelled)
            if option.remark:
                parsed.remarks.append(Remark("option-dropped", f"{spelled} is not used: {option.remark}", ""))
            try:
                option.take(parsed, given)
            except ValueError as error:
                parsed.problems.append(problem(spelled, str(error)))
    parsed.rest = list(words[at:])
    return parsed


def read_past_unknown(options: Options, words: Sequence[str], program: str) -> Parsed:
    """Parses like `read`, but continues after an unknown option and its value if a program follows."""
    parsed = read(options, words, program)
    while parsed.has_unknown and parsed.rest and not _starts(parsed.rest[0]) and any(map(_starts, parsed.rest[1:])):
        parsed.has_unknown = False
        read(options, parsed.rest[1:], program, parsed)
    return parsed


def _starts(word: str) -> bool:
    """Whether a word starts the launched command, as opposed to being the value of an option."""
    return word.endswith(".py") or bool(re.fullmatch(r"(.*/)?(python[0-9.]*|[\w.-]+\.sh)|\./.*|-m", word))


def _key(spelled: str, options: Options) -> str:
    """Returns the key of an option in the table: `_` becomes `-`; `-np` is a long option only for MPI."""
    name = spelled.lstrip("-")
    if spelled.startswith("--") or len(name) == 1 or options.single_dash:
        return name.replace("_", "-")
    return f"-{name}"


def number(word: str, least: int = 0) -> int:
    """Parses a whole number; raises `ValueError` with the expected value."""
    if not re.fullmatch(r"[0-9]{1,9}", word) or int(word) < least:
        raise ValueError(f"expected a whole number from {least}, found {found(word)}")
    return int(word)


def count(name: str, least: int = 0) -> Option:
    """Creates an option whose number is stored in the field `name` of the job."""

    def take(parsed: Parsed, words: tuple[str, ...]) -> None:
        parsed.fields[name] = number(words[0], least)

    return Option(1, take)


def flag(name: str) -> Option:
    """Creates an option without a value; all flags are evaluated together after parsing."""
    return Option(0, lambda parsed, _: parsed.flags.add(name))


def handled(values: int) -> Option:
    """Creates an option that is accepted and dropped, because Windlass has the same effect by itself."""
    return Option(values, lambda _parsed, _words: None, is_handled=True)


def dropped(values: int, why: str, *names: str) -> dict[str, Option]:
    """Creates options that are accepted but have no effect; a remark says why."""
    return dict.fromkeys(names, Option(values, lambda _parsed, _words: None, remark=why))


def _nodes(parsed: Parsed, words: tuple[str, ...]) -> None:
    low, colon, high = words[0].partition(":")
    least = number(low, 1)
    parsed.fields["nodes"] = {"min": least, "max": number(high, 1)} if colon else least


def _ranks(parsed: Parsed, words: tuple[str, ...]) -> None:
    if words[0] in ("cpu", "xpu"):
        raise ValueError(f"{words[0]} is not known here; write the number of ranks")
    parsed.fields["procs_per_node"] = "auto" if words[0] in ("auto", "gpu") else number(words[0], 1)


def _port(parsed: Parsed, words: tuple[str, ...]) -> None:
    parsed.fields["local"] = {"port": number(words[0], 1)}


def _backend(parsed: Parsed, words: tuple[str, ...]) -> None:
    if words[0] not in ("c10d", "static"):
        why = "Windlass sets up the rendezvous itself"
        parsed.remarks.append(Remark("option-dropped", f"--rdzv-backend {words[0]} is not used: {why}", ""))


def _grace(parsed: Parsed, words: tuple[str, ...]) -> None:
    try:
        parsed.fields["grace"] = parse_duration(words[0])
    except ValueError:
        raise ValueError(f"expected seconds, found {found(words[0])}") from None


def _set_variable(parsed: Parsed, name: str, value: str) -> None:
    parsed.fields.setdefault("env", {})[name] = value


def _export(parsed: Parsed, words: tuple[str, ...]) -> None:
    name, equals, value = words[0].partition("=")
    if equals:
        _set_variable(parsed, name, value)
    else:
        parsed.exported.append(name)


def _mca(parsed: Parsed, words: tuple[str, ...]) -> None:
    # The parameter becomes an environment variable of the job: Open MPI reads parameters from OMPI_MCA_… too.
    _set_variable(parsed, f"OMPI_MCA_{words[0]}", words[1])
    # Open MPI 5 reads parameters of its runtime, PRRTE, from variables with the prefix PRTE_MCA_.
    if words[0].startswith(_OF_RUNTIME):
        _set_variable(parsed, f"PRTE_MCA_{_in_prrte(words[0])}", words[1])


def _in_prrte(name: str) -> str:
    return re.sub(r"^plm_rsh_", "plm_ssh_", re.sub(r"^orte_", "prte_", name))


def _gpus(parsed: Parsed, words: tuple[str, ...]) -> None:
    parsed.fields["procs_per_node"] = "auto" if words[0] == "-1" else number(words[0], 1)


def _one_node(parsed: Parsed, words: tuple[str, ...]) -> None:
    if words[0] not in ("-1", "1"):
        raise ValueError(
            f"its own launcher would reach {words[0]} nodes by ssh; leave it out, and give Windlass the "
            f"number: windlass run --nodes {words[0]} -- deepspeed …"
        )


def _devices(parsed: Parsed, words: tuple[str, ...]) -> None:
    _set_variable(parsed, "LT_DEVICES", words[0])
    ids = [word for word in words[0].split(",") if word.strip()]
    if words[0] == "auto":
        parsed.fields["procs_per_node"] = 1
    elif "," in words[0]:
        parsed.fields["procs_per_node"] = len(ids)
    else:
        _gpus(parsed, words)


def _fabric_nodes(parsed: Parsed, words: tuple[str, ...]) -> None:
    parsed.fields["nodes"] = number(words[0], 1)
    _set_variable(parsed, "LT_NUM_NODES", words[0])


def _variable(name: str) -> Option:
    """Creates an option whose value becomes an environment variable of each rank."""
    return Option(1, lambda parsed, words: _set_variable(parsed, name, words[0]))


def refused(values: int, instead: str, *names: str) -> dict[str, Option]:
    """Creates options that are not supported."""
    return dict.fromkeys(names, Option(values, None, instead))


LOGS_KEPT = "the run keeps the log of each rank, and `windlass logs` shows them"
OWN_AGENT = "Windlass starts and supervises the ranks itself"
_OWN_LOGS = "leave it out: the run keeps the log of every rank, and `windlass logs` shows them"
_OF_RUNTIME = ("orte_", "plm_", "rmaps_", "odls_", "oob_", "ras_", "ess_", "iof_", "routed_", "grpcomm_")
"""Prefixes of the parameters of Open MPI's runtime."""
_HOSTS = "leave it out: the target selects machines, and nodes: sets their number"
_BINDING = "leave it out: Windlass sets the placement of ranks"
_TORCHRUN = {
    "nnodes": Option(1, _nodes),
    "nproc-per-node": Option(1, _ranks),
    "max-restarts": count("restarts"),
    "shutdown-timeout": Option(1, _grace),
    "standalone": flag("standalone"),
    **dict.fromkeys(("m", "module"), flag("module")),
    "no-python": flag("no-python"),
    "rdzv-backend": Option(1, _backend, is_handled=True),
    **dict.fromkeys(("rdzv-endpoint", "rdzv-id", "rdzv-conf", "node-rank", "master-addr"), handled(1)),
    "master-port": Option(1, _port, is_handled=True),
    **dropped(1, LOGS_KEPT, "log-dir", "redirects", "r", "tee", "t", "log-line-prefix-template"),
    **dropped(1, LOGS_KEPT, "local-ranks-filter", "duplicate-stdout-filters", "duplicate-stderr-filters"),
    **dropped(1, OWN_AGENT, "monitor-interval", "start-method", "role", "logs-specs", "event-log-handler"),
    **dropped(1, "the target provides the addresses of its nodes", "local-addr"),
    **refused(1, "leave it out: ranks are not bound to parts of a machine", "numa-binding"),
    **refused(1, "leave it out: every rank gets SIGTERM, and grace: sets the time until SIGKILL", "signals-to-handle"),
    **refused(0, "leave it out: each rank is a separate process", "run-path"),
    **refused(0, "leave it out: LOCAL_RANK is what torchrun sets without it", "virtual-local-rank"),
    **refused(1, "see `windlass completion`", "print-completion"),
    **refused(0, "see `windlass run --help`", "help", "h"),
}
TORCHRUN = Options(_TORCHRUN)
LAUNCH = Options({**_TORCHRUN, "use-env": flag("use-env")}, first=("launch",))
MPIRUN = Options(
    {
        **dict.fromkeys(("np", "n", "c"), count("procs_per_node", 1)),
        "x": Option(1, _export),
        "mca": Option(2, _mca),
        **dict.fromkeys(("oversubscribe", "allow-run-as-root"), handled(0)),
        **refused(1, _HOSTS, "H", "host", "hosts", "hostfile", "machinefile", "default-hostfile"),
        **refused(1, _BINDING, "bind-to", "map-by", "rank-by", "npernode", "N", "ppr", "rankfile", "cpus-per-rank"),
        **refused(0, _BINDING, "bind-to-core", "bind-to-socket", "bind-to-none", "bynode", "byslot"),
        **refused(0, _OWN_LOGS, "tag-output", "timestamp-output"),
        **refused(1, _OWN_LOGS, "output-filename", "output"),
        **refused(1, "leave it out: code: sets the folder in which ranks start", "wdir", "wd"),
        **refused(1, "leave it out: the image or the machine has its MPI", "prefix"),
        **refused(1, "leave it out, and write timeout: in the job", "timeout"),
        **refused(0, "leave it out", "verbose", "v", "quiet", "q", "help", "h", "version", "V"),
    },
    single_dash=True,
)
HOROVOD = Options(
    {
        **dict.fromkeys(("np", "num-proc"), count("procs_per_node", 1)),
        **dict.fromkeys(("mpi", "verbose"), handled(0)),
        **refused(1, _HOSTS, "H", "hosts", "hostfile"),
        **refused(0, "leave it out: Windlass starts Horovod by MPI", "gloo"),
        **refused(1, "Horovod is not elastic under MPI", "min-np", "max-np", "host-discovery-script"),
        **refused(1, "leave it out: no ssh is used", "ssh-port", "p", "ssh-identity-file", "i"),
    },
    single_dash=True,
)
_NODES_BY_WINDLASS = "leave it out, and give Windlass the number of nodes: windlass run --nodes 2 -- deepspeed …"
_ELASTIC = "leave it out: nodes: {min: 1, max: 4} makes a job elastic"
DEEPSPEED = Options(
    {
        "num-gpus": Option(1, _gpus),
        "num-nodes": Option(1, _one_node),
        "master-port": Option(1, _port, is_handled=True),
        "master-addr": handled(1),
        "module": flag("module"),
        "no-python": flag("no-python"),
        "no-local-rank": flag("no-local-rank"),
        **dict.fromkeys(("no-ssh-check", "save-pid"), handled(0)),
        **dropped(1, LOGS_KEPT, "enable-each-rank-log"),
        **dropped(0, OWN_AGENT, "bind-cores-to-rank"),
        **refused(1, _NODES_BY_WINDLASS, "hostfile", "H", "launcher", "launcher-args", "node-rank", "ssh-port"),
        **refused(0, _NODES_BY_WINDLASS, "no-ssh", "force-multi"),
        **refused(1, "write --num_gpus, and CUDA_VISIBLE_DEVICES=0,1 before windlass", "include", "i", "exclude", "e"),
        **refused(0, _ELASTIC, "elastic-training"),
        **refused(1, _ELASTIC, "min-elastic-nodes", "max-elastic-nodes"),
        **refused(1, "run it without Windlass: it starts many trainings", "autotuning"),
        **refused(1, "leave it out", "bind-core-list", "venv-script"),
    },
    first=("deepspeed",),
)
FABRIC = Options(
    {
        "devices": Option(1, _devices),
        "num-nodes": Option(1, _fabric_nodes),
        "accelerator": _variable("LT_ACCELERATOR"),
        "strategy": _variable("LT_STRATEGY"),
        "precision": _variable("LT_PRECISION"),
        **dict.fromkeys(("node-rank", "main-address"), handled(1)),
        "main-port": Option(1, _port, is_handled=True),
    },
    first=("fabric",),
)
