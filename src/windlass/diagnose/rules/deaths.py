"""Ranks that ended without an exception: by a signal, or by an exit code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from windlass.diagnose.reading import WHAT, fatal_stack, last_lines
from windlass.diagnose.rules.case import Case
from windlass.diagnose.verdict import Verdict

MB: Final = 1e6


def killed(case: Case) -> Iterator[Verdict]:
    """SIGKILL: the kernel for want of memory, or somebody."""
    if case.signal != "SIGKILL" or case.first is None or "node_lost" in case.cause or case.raised is not None:
        return
    facts, rank = case.facts, case.first.rank
    evidence = [f"{case.who} was ended by SIGKILL"]
    record = facts.get("oom_record")
    limit = facts.get("memory_limit_bytes")
    group, machine = int(facts.get("oom_kills_of_group") or 0), int(facts.get("oom_kills_of_machine") or 0)
    if record or group or machine:
        if record:
            evidence.append(f"the kernel: {record}")
        if group:
            evidence.append(f"its control group counted {group} OOM kill{'s' if group > 1 else ''} while it ran")
        elif machine:
            evidence.append(f"the machine counted {machine} OOM kill{'s' if machine > 1 else ''} while it ran")
        if limit:
            evidence.append(f"memory limit of its control group: {limit / MB:,.0f} MB")
        yield Verdict(
            "oom-killed",
            f"{case.who} was killed by the kernel: it took more memory than there is",
            rank,
            tuple(evidence),
            "a smaller batch, fewer DataLoader workers, data read in parts rather than as a whole; or more memory",
            100 if record or group else 92,
        )
        return
    counted = "oom_kills_of_group" in facts or "oom_kills_of_machine" in facts
    if counted:
        evidence.append("the kernel counted no OOM kill meanwhile, so it was not for want of memory")
    yield Verdict(
        "killed",
        f"{case.who} was killed from outside (SIGKILL)",
        rank,
        tuple(evidence),
        "see who does this here: kill -9 by hand, a batch system's limit, a container runtime",
        90,
    )


def segfault(case: Case) -> Iterator[Verdict]:
    """SIGSEGV, SIGBUS, SIGILL, SIGFPE: native code went wrong."""
    if case.first is None or case.signal not in ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE"):
        return
    rank = case.first.rank
    _, stack = fatal_stack(case.text)
    evidence = [f"{case.who} was ended by {case.signal}"]
    if case.where:
        evidence.append(f"it was at {case.where}")
    if stack and stack[0].place not in case.where:
        evidence.append(f"innermost Python frame: {stack[0].place} in {stack[0].name}")
    shm_free = case.facts.get("shm_free_bytes")
    if case.signal == "SIGBUS" and shm_free is not None and shm_free < 64 * MB:
        evidence.append(f"/dev/shm has {shm_free / MB:,.1f} MB left of {case.facts.get('shm_bytes', 0) / MB:,.0f} MB")
        yield Verdict("shm-full", "no space was left in shared memory (/dev/shm)", rank, tuple(evidence), SHM_FIX, 95)
    elif case.signal == "SIGILL":
        yield Verdict(
            "illegal-instruction",
            f"{case.who} met an instruction that this processor does not have (SIGILL)",
            rank,
            tuple(evidence),
            "install a build of the library that is made for this processor",
            90,
        )
    else:
        what = {"SIGBUS": "bus error", "SIGFPE": "arithmetic error"}.get(case.signal, "segmentation fault")
        yield Verdict(
            "bus-error" if case.signal == "SIGBUS" else "segfault",
            f"{case.who} crashed in native code: {what}" + (f" at {case.where}" if case.where else ""),
            rank,
            tuple(evidence),
            "look at the native call on that line; upgrade or rebuild the library it belongs to"
            + ("; a file that was cut short while it was mapped does this too" if case.signal == "SIGBUS" else ""),
            90,
        )


SHM_FIX: Final = (
    "a larger /dev/shm (resources.shm:, docker --shm-size), fewer DataLoader workers, or "
    "torch.multiprocessing.set_sharing_strategy('file_system')"
)


_ABORT_WORDS = re.compile(
    r"^(?:\S*[Aa]ssertion .*failed.*|\S+: .*malloc.*|.*(?:corrupted|double free).*|F\d{4} .*)$", re.MULTILINE
)


def aborted(case: Case) -> Iterator[Verdict]:
    """SIGABRT: native code gave up."""
    if case.first is None or case.signal != "SIGABRT":
        return
    rank = case.first.rank
    evidence = [f"{case.who} was ended by SIGABRT"]
    said = next(reversed(list(WHAT.finditer(case.text))), None)
    if said is not None:
        evidence.insert(0, f"{said[1]}: {(said[2] or '').strip()[:300]}".rstrip(": "))
    elif fatal := _ABORT_WORDS.search(case.text):
        evidence.insert(0, fatal[0][:300])
    if case.where:
        evidence.append(f"it was at {case.where}")
    if said is not None and said[1] == "std::bad_alloc":
        yield Verdict(
            "out-of-memory", f"{case.who} asked for memory and got none (std::bad_alloc)", rank, tuple(evidence),
            "a smaller batch or model; see ulimit -v and the memory limit of the container", 95,
        )  # fmt: skip
        return
    yield Verdict(
        "native-abort",
        f"{case.who} was aborted by native code" + (f" at {case.where}" if case.where else ""),
        rank,
        tuple(evidence),
        "read what the library said before; upgrade or rebuild it",
        85,
    )


def signalled(case: Case) -> Iterator[Verdict]:
    """Any other signal from outside."""
    known = ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT")
    if case.first is None or case.signal is None or case.signal in known or case.raised is not None:
        return
    limits = {"SIGXCPU": "its CPU time limit (ulimit -t)", "SIGXFSZ": "its file size limit (ulimit -f)"}
    if case.signal in limits:
        evidence = (f"{case.who} was ended by {case.signal}",)
        summary, fix = f"{case.who} reached {limits[case.signal]}", "raise that limit where Windlass is called"
        yield Verdict("limit-reached", summary, case.first.rank, evidence, fix, 90)
        return
    yield Verdict(
        "signal",
        f"{case.who} was ended from outside by {case.signal}",
        case.first.rank,
        (f"neither Windlass nor the job's time limit sent it; {case.who} was the first to end",),
        "see who sends it: kill by hand, the script itself, a batch system or a shell that was closed",
        90,
    )


_USAGE = re.compile(r"^usage:.*", re.MULTILINE | re.IGNORECASE)
_USAGE_ERROR = re.compile(r"^(?:\S.*: )?error: .*", re.MULTILINE | re.IGNORECASE)
_NOT_FOUND = re.compile(r"^.*?(?:line \d+: )?(?P<what>[^\s:]+): (?:command )?not found$", re.MULTILINE)


def exit_code(case: Case) -> Iterator[Verdict]:
    """An exit code and no exception."""
    if case.first is None or case.signal is not None or case.raised is not None:
        return
    code, rank, lines = case.code, case.first.rank, last_lines(case.text)
    usage = _USAGE.search(case.text)
    if code == 2 and usage:
        errors = _USAGE_ERROR.findall(case.text)
        said = errors[-1].strip() if errors else lines[-1]
        yield Verdict(
            "wrong-arguments",
            f"the script does not take these arguments: {said.rpartition('error: ')[2]}",
            rank,
            (said, usage[0].strip()[:300], f"it was called with: {_arguments(case)}"),
            "change the arguments in run: (or after --)",
            92,
        )
    elif code == 127 and (missing := _NOT_FOUND.search(case.text)):
        yield Verdict(
            "program-missing", f"{missing['what']} was not found by the shell", rank, (missing[0].strip(),),
            f"install {missing['what']}, give its path, or add its folder to PATH in env:", 92,
        )  # fmt: skip
    elif code == 126 and "ermission denied" in case.text:
        yield Verdict("permission-denied", "a program may not be run", rank, lines[-1:], "chmod +x on it", 90)
    elif not lines:
        yield Verdict(
            "exit-without-a-word",
            f"{case.who} ended with exit code {code} and has not written anything",
            rank,
            (f"exit code {code}", "its log is empty"),
            "look for sys.exit and os._exit in the script, and let it say why before it leaves",
            45,
        )
    else:
        yield Verdict(
            "exit-code",
            f"{case.who} ended with exit code {code}; its last line: {lines[-1]}",
            rank,
            (f"exit code {code}, no exception", *lines),
            "read the lines before its end; where it calls sys.exit, it knows why",
            40,
        )


def _arguments(case: Case) -> str:
    job = case.seen.plan.get("job", {})
    return str(job.get("run") or " ".join(job.get("command") or ()))
