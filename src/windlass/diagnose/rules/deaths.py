"""Rules on ranks that ended without an exception: by a signal or an exit code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from windlass.diagnose.observations import Observations
from windlass.diagnose.reading import WHAT, fatal_stack, last_lines, main_stack, own_frame
from windlass.diagnose.verdict import Verdict
from windlass.plan.plan import NO_PLAN
from windlass.worker.tracebacks import plain

MB: Final = 1e6
SHM_FIX: Final = (
    "a larger /dev/shm (resources.shm:, docker --shm-size), fewer DataLoader workers, or "
    "torch.multiprocessing.set_sharing_strategy('file_system')"
)
KILLED_FIX: Final = "see what does this here: kill -9 by hand, a batch system's limit, a container runtime"
UNCOUNTED: Final = "most often for want of memory (no counter of OOM kills could be read)"
CRASHES: Final = {
    "SIGSEGV": ("segfault", "segmentation fault"),
    "SIGFPE": ("segfault", "arithmetic error"),
    "SIGBUS": ("bus-error", "bus error"),
    "SIGILL": ("illegal-instruction", ""),
}
LIMITS: Final = {"SIGXCPU": "its CPU time limit (ulimit -t)", "SIGXFSZ": "its file size limit (ulimit -f)"}
_ABORT: Final = re.compile(
    r"^(?:\S*[Aa]ssertion .*failed.*|\S+: .*malloc.*|.*(?:corrupted|double free).*|F\d{4} .*)$", re.MULTILINE
)
_USAGE: Final = re.compile(
    r"^(?:usage:.*|[^:\n]{1,20}: \S+\.py\b.*(?=\n\S+\.py: error: ))", re.MULTILINE | re.IGNORECASE
)
"""First line of an argparse usage message, in any language."""
_USAGE_ERROR: Final = re.compile(r"^(?:\S.*: )?error: .*", re.MULTILINE | re.IGNORECASE)
_LEVEL: Final = re.compile(r"^.*\berror: ", re.IGNORECASE)
_REFUSED: Final = re.compile(
    r"^(?:FATAL Flags parsing error:\n\s+(?P<absl>.*)|"
    r"(?P<hydra>(?:Could not override '|Error parsing override '|In '.*': Could not find ').*)|"
    r"\u2502 +(?P<boxed>(?:Missing|No such|Invalid|Unrecognized|Unknown|Required|Got unexpected) .*?) *\u2502$)",
    re.MULTILINE,
)
"""Messages of absl, Hydra, Typer, rich-click and tyro about refused arguments."""
_LOCAL_RANK: Final = re.compile(r"(--local[-_]rank)=")
_NO_LOCAL_RANK: Final = {
    "--local_rank": "let the script take --local_rank, or give deepspeed --no_local_rank",
    "--local-rank": "let the script take --local-rank, or give torch.distributed.launch --use-env",
}
_NOT_IMPORTED: Final = re.compile(r"\S*python\S*: .*No module named '?(?P<module>[\w.]+)")
"""Message of an interpreter that was started with -m."""
_NOT_FOUND: Final = re.compile(r"^.*?(?:line \d+: )?(?P<what>[^\s:]+): (?:command )?not found$", re.MULTILINE)
_NOT_FOUND_IN_ANY_LANGUAGE: Final = re.compile(
    r"^[\w./-]*sh: (?:[^:\n]* \d+: )?(?P<what>[^\s:]+): [^:\n]+$", re.MULTILINE
)
_WATCHDOG: Final = re.compile(
    r"^(?P<what>Timeout \([\d:.]+\)!)\n(?P<stacks>(?:(?:Thread|Current thread) 0x.*\n|  .*(?:\n|\Z)|\n)*)\Z",
    re.MULTILINE,
)
"""Output of `faulthandler.dump_traceback_later(exit=True)`. Without `exit=True`, other output would follow."""
_OTHER_WORLD: Final = re.compile(r"started a world of (\d+) ranks, and the job has (\d+)$", re.MULTILINE)
_NO_SLOTS: Final = re.compile(
    r"There are not enough slots available in the system to satisfy the \d+\s+slots|"
    r"All nodes which are allocated for this job are already filled"
)
_NOT_FINALIZED: Final = re.compile(
    r"\w+ has exited due to process rank (?P<rank>\d{1,9}) with PID \d+ on\s+node \S+ exiting\s+improperly"
)
_CHILD_CODE: Final = re.compile(r"returned non-zero exit status (\d{1,3})\.?$")
_MPI_ABORT: Final = re.compile(
    r"MPI_ABORT was invoked on rank (?P<rank>\d{1,9}) in communicator (?P<group>.*)\n"
    r"(?:.*\n)??.*errorcode:? (?P<code>-?\d+)",
    re.IGNORECASE,
)


def killed(case: Observations) -> Iterator[Verdict]:
    """Explains SIGKILL, sent by the kernel for lack of memory or by another process."""
    if case.signal != "SIGKILL" or case.cause.node_lost is not None or case.raised is not None:
        return
    host, evidence = case.host, [f"{case.who} was ended by SIGKILL"]
    limit, group, machine = host.memory_limit_bytes, host.oom_kills_of_group, host.oom_kills_of_machine
    if host.oom_record:
        evidence.append(f"the kernel: {host.oom_record}")
    if group or machine:
        counter, count = ("its control group", group) if group else ("the node", machine or 0)
        evidence.append(f"{counter} counted {count} OOM kill{'s' if count > 1 else ''} while it ran")
    if host.oom_record or group or machine:
        evidence += [f"memory limit of its control group: {limit / MB:,.0f} MB"] if limit else []
        yield case.of_first(
            "oom-killed",
            f"{case.who} was killed by the kernel: it used more memory than there is",
            evidence,
            ("" if case.setup_end else "a smaller batch, fewer DataLoader workers, ")
            + "data read in parts rather than as a whole; or more memory",
            100 if host.oom_record or group else 92,
        )
        return
    if group is None and machine is None:
        less = "" if case.setup_end else "a smaller batch, fewer DataLoader workers, or "
        fix = f"{less}more memory; if that does not help, {KILLED_FIX}"
        yield case.of_first("killed", f"{case.who} was killed (SIGKILL), {UNCOUNTED}", evidence, fix, 90)
        return
    evidence.append("the kernel counted no OOM kill meanwhile, so it was not for lack of memory")
    yield case.of_first("killed", f"{case.who} was killed from outside (SIGKILL)", evidence, KILLED_FIX, 90)


def segfault(case: Observations) -> Iterator[Verdict]:
    """Explains SIGSEGV, SIGBUS, SIGILL or SIGFPE: native code crashed."""
    if case.signal not in CRASHES:
        return
    code, what = CRASHES[case.signal]
    stack = fatal_stack(case.text)
    evidence = [f"{case.who} was ended by {case.signal}", *([f"it was at {case.where}"] if case.where else [])]
    if stack and stack[0].place not in case.where:
        evidence.append(f"innermost Python frame: {stack[0].place} in {stack[0].name}")
    shm_free = case.host.shm_free_bytes
    if case.signal == "SIGBUS" and shm_free is not None and shm_free < 64 * MB:
        evidence.append(f"/dev/shm has {shm_free / MB:,.1f} MB left of {case.host.shm_bytes / MB:,.0f} MB")
        yield case.of_first("shm-full", "no space was left in shared memory (/dev/shm)", evidence, SHM_FIX, 95)
    elif case.signal == "SIGILL":
        yield case.of_first(
            code,
            f"{case.who} met an instruction that this processor does not have (SIGILL)",
            evidence,
            "install a build of the library that is made for this processor",
            90,
        )
    else:
        is_bus_error = case.signal == "SIGBUS"
        fix = "upgrade or rebuild the library that crashed"
        if case.where:
            fix = "look at the native call on that line; upgrade or rebuild the library it belongs to"
        elif _is_program(case):
            fix = "rebuild the program with debug symbols, and run it in a debugger: gdb"
        fix += "; a file that was cut short while it was mapped does this too" if is_bus_error else ""
        yield case.of_first(
            code, f"{case.who} crashed in native code: {what}{_at(case)}", evidence, fix, 90, is_effect=is_bus_error
        )


def aborted(case: Observations) -> Iterator[Verdict]:
    """Explains SIGABRT: native code aborted."""
    if case.signal != "SIGABRT":
        return
    evidence = [f"{case.who} was ended by SIGABRT"]
    thrown = next(reversed(list(WHAT.finditer(case.text))), None)
    if thrown is not None:
        evidence.insert(0, f"{thrown[1]}: {(thrown[2] or '').strip()[:300]}".rstrip(": "))
    elif fatal := _ABORT.search(case.text):
        evidence.insert(0, fatal[0][:300])
    evidence += [f"it was at {case.where}"] if case.where else []
    if thrown is not None and thrown[1] == "std::bad_alloc":
        yield case.of_first(
            "out-of-memory",
            f"{case.who} asked for memory and got none (std::bad_alloc)",
            evidence,
            "a smaller batch or model; see ulimit -v and the memory limit of the container",
            95,
        )
    else:
        yield case.of_first(
            "native-abort",
            f"{case.who} was aborted by native code{_at(case)}",
            evidence,
            "read what the library printed before; upgrade or rebuild it",
            85,
            is_effect=True,
        )


def signalled(case: Observations) -> Iterator[Verdict]:
    """Explains any other signal that another process sent to the rank."""
    if case.signal in (None, "SIGKILL", "SIGABRT", *CRASHES) or case.raised is not None:
        return
    if case.signal in LIMITS:
        yield case.of_first(
            "limit-reached",
            f"{case.who} reached {LIMITS[case.signal]}",
            [f"{case.who} was ended by {case.signal}"],
            "raise that limit where Windlass is called",
            90,
        )
        return
    yield case.of_first(
        "signal",
        f"{case.who} was ended from outside by {case.signal}",
        [f"neither Windlass nor the job's time limit sent it; {case.who} was the first to end"],
        "see what sends it: kill by hand, the script itself, a batch system or a shell that was closed",
        90,
    )


def exit_code(case: Observations) -> Iterator[Verdict]:
    """Explains a rank that ended with an exit code and without an exception."""
    if case.first is None or case.signal is not None or case.raised is not None:
        return
    code, lines = case.code, last_lines(case.text)
    if refused := _refused(case, code):
        yield refused
    elif code == 1 and (dump := _WATCHDOG.search(case.text)):
        place = case.at(own_frame(main_stack(dump["stacks"]), case.code_dir, innermost_first=True))
        yield case.of_first(
            "watchdog",
            f"{case.who} did not finish within the time that its script had set"
            + (f"; it was at {place}" if place else ""),
            [f"{dump['what']}, as faulthandler.dump_traceback_later writes it, and exit code 1"],
            "see what it waited for; allow more time there if it was only slow",
            90,
            is_effect=True,
        )
    elif code == 127 and (missing := _NOT_FOUND.search(case.text) or _NOT_FOUND_IN_ANY_LANGUAGE.search(case.text)):
        yield case.of_first(
            "program-missing",
            f"the shell has not found {missing['what']}",
            [missing[0].strip()],
            f"install {missing['what']}, give its path, or add its folder to PATH in env:",
            92,
        )
    elif code == 1 and lines and (unknown := _NOT_IMPORTED.match(lines[-1])):
        module = unknown["module"]
        yield case.of_first(
            "module-missing",
            f"there is no module {module}, which run: names",
            lines[-1:],
            f"-m finds modules in the folder of the job and among the packages of {case.python or 'python'}: correct "
            f"the name, or install what brings {module}",
            92,
        )
    elif code == 126 and "ermission denied" in case.text:
        yield case.of_first("permission-denied", "a program may not be run", lines[-1:], "chmod +x on it", 90)
    elif case.setup_end:
        own = [line for line in lines if not line.startswith("setup failed with ")]
        said = f"; its last line: {own[-1]}" if own else ", and no output"
        yield case.of_first(
            "setup-failed",
            f"the setup script of the job ended with {case.setup_end}{said}",
            [f"{case.setup_end}, before any rank was started", *own],
            f"correct setup: in the job file; its output is in the log: windlass logs {case.status.id}",
            90,
        )
    elif not lines:
        yield case.of_first(
            "exit-without-output",
            f"{case.who} ended with exit code {code} and has no output",
            [f"exit code {code}", "its log is empty"],
            "print each command of the script before it runs: set -x in a shell script"
            if _is_program(case)
            else "look for sys.exit and os._exit in the script, and print the reason before them",
            45,
            is_effect=True,
        )
    else:
        yield case.of_first(
            "exit-code",
            f"{case.who} ended with exit code {code}; its last line: {lines[-1]}",
            [f"exit code {code}, no exception", *lines],
            "read the lines before its end"
            + ("" if _is_program(case) else "; look for sys.exit and os._exit in the script"),
            40,
            is_effect=True,
        )


def of_child(case: Observations) -> Iterator[Verdict]:
    """Explains that the child of a launcher, such as accelerate's, refused its arguments without a traceback."""
    error = case.raised
    if error is None or error.kind != "CalledProcessError" or case.first is None:
        return
    if (ended := _CHILD_CODE.search(error.line)) and (refused := _refused(case, int(ended[1]))):
        yield refused


def _refused(case: Observations, code: int) -> Verdict | None:
    """Returns a verdict that quotes the script's message, if the script ended with this code because it refused its
    arguments.
    """
    usage, other = _USAGE.search(case.text), _REFUSED.search(case.text)
    if not (usage and code == 2) and not (other and code in (1, 2)):
        return None
    errors = _USAGE_ERROR.findall(case.text)
    error = errors[-1] if errors else next(filter(None, other.groups())) if other else last_lines(case.text)[-1]
    job = case.plan.job
    called = f"it was called with: {job.get('run') or ' '.join(job.get('command') or ())}"
    passed = _LOCAL_RANK.search(error)
    is_launchers = passed is not None and f"{passed[0]}$WINDLASS_LOCAL_RANK" in called
    fix = _NO_LOCAL_RANK[passed[1]] if passed and is_launchers else "change the arguments in run: (or after --)"
    return case.of_first(
        "wrong-arguments",
        f"the script refuses its arguments: {_LEVEL.sub('', error.strip())}",
        [error.strip(), *([usage[0].strip()[:300]] if usage else []), called],
        fix,
        92,
    )


def of_mpi(case: Observations) -> Iterator[Verdict]:
    """Explains mpirun's report of a rank that called MPI_Abort or exited without MPI_Finalize."""
    if case.first is None or case.signal is not None or case.raised is not None:
        return
    if found := _OTHER_WORLD.search(case.text):
        yield Verdict(
            "ranks-mismatch",
            f"MPI has a world of {found[1]} ranks, and the job has {found[2]}",
            None,
            last_lines(case.text),
            "look for options of mpirun in env: and in the image; Open MPI 4 reads the list of hosts from "
            "OMPI_MCA_orte_default_hostfile, 5 from PRTE_MCA_prte_default_hostfile",
            95,
        )
    if found := _NO_SLOTS.search(case.text):
        yield case.of_first(
            "mpi-no-slots",
            "mpirun has fewer slots than processes to start",
            [" ".join(found[0].split())],
            "let Windlass start it: windlass run -- mpirun -np N PROGRAM (launcher: mpi, procs_per_node: N); or "
            "mpirun --oversubscribe",
            94,
        )
    if found := _NOT_FINALIZED.search(case.text):
        rank, log = _rank_of_mpi(case, int(found["rank"]))
        yield Verdict(
            "mpi-not-finalized",
            f"rank {found['rank']} exited without MPI_Finalize",
            rank,
            (" ".join(found[0].split()), "mpirun then ended the other ranks"),
            f"let every rank return from its script, or call MPI.Finalize() before os._exit; its log: {log}",
            60,
        )
    said = (_MPI_ABORT.search(text) for text in (case.text, *(plain(node.words) for node in case.nodes)))
    if found := next(filter(None, said), None):
        # Only in MPI_COMM_WORLD do rank numbers match those of the job.
        is_world = found["group"].strip() == "MPI_COMM_WORLD"
        rank, log = _rank_of_mpi(case, int(found["rank"]) if is_world else case.first.rank)
        who = f"rank {found['rank']}" if is_world else f"rank {found['rank']} of {found['group'].strip()}"
        yield Verdict(
            "mpi-abort",
            f"{who} called MPI_Abort with error code {found['code']}",
            rank,
            (" ".join(found[0].split()), *last_lines(case.text)),
            f"look for Abort in the script, and read what was printed before it: {log}",
            60,
            is_effect=True,
        )


def _rank_of_mpi(case: Observations, number: int) -> tuple[int, str]:
    """Returns the rank with this MPI number, and the command that shows its log. If the run has one rank, that rank may
    be mpirun itself.
    """
    rank = number if len(case.status.ranks) > 1 else 0
    return rank, f"windlass logs {case.status.id} --rank {rank} --tail 50"


def _is_program(case: Observations) -> bool:
    """Whether the ranks run a program that is no Python script, as far as the plan shows."""
    return case.plan is not NO_PLAN and not case.python


def _at(case: Observations) -> str:
    return f" at {case.where}" if case.where else ""
