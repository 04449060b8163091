"""Runs that ended, or did not begin, without a rank failing by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from windlass.diagnose.reading import last_lines, main_stack, own_frame
from windlass.diagnose.rules.case import Case
from windlass.diagnose.verdict import Verdict
from windlass.runs.record import Phase


def stopped(case: Case) -> Iterator[Verdict]:
    """Somebody asked for the end."""
    if case.status.phase is not Phase.STOPPED and not (case.status.stop_requested and case.status.phase is Phase.LOST):
        return
    wish = _last(case, "stop")
    if not wish and _last(case, "end").get("reason") == "preemption":
        notice = _last(case, "notice")
        who = "its machine was to go away" if notice.get("source") == "imds" else "SIGTERM, as a machine that goes down"
        summary = f"the run was ended from outside: {who}"
        fix = f"windlass resume {case.status.id}; restarts: {{max: 3, on: [preemption]}} does it by itself"
    else:
        summary = "a person stopped the run" + (" without grace" if wish.get("now") else "")
        fix = "nothing to mend; start it again with windlass run"
    yield Verdict("stopped", summary, evidence=tuple(_still_there(case)), fix=fix, score=100)


def timeout(case: Case) -> Iterator[Verdict]:
    """The job's time limit was reached."""
    if not case.timed_out:
        return
    seconds = case.seen.plan.get("policy", {}).get("timeout_seconds") or 0
    evidence = [f"timeout: {seconds:g} s, all attempts together"]
    progress = case.status.progress
    if "step" in progress:
        total = f" of {progress['total']}" if "total" in progress else ""
        evidence.append(f"it had come to step {progress['step']}{total}")
    evidence += _still_there(case)
    fix = "give it more time (timeout:), or less to do"
    yield Verdict(
        "timeout", f"the time limit of {seconds:g} s was reached", evidence=tuple(evidence), fix=fix, score=70
    )
    if case.status.ranks and all(state.pid is None for state in case.status.ranks):
        yield Verdict(
            "never-started",
            f"the time limit of {seconds:g} s was reached before any rank was started",
            evidence=(*evidence, "a warm process imports what the script imports before it forks the ranks"),
            fix="see whether this machine is overloaded; give it more time (timeout:), or start cold: "
            "local: {start: cold}",
            score=90,
        )
    elif case.seen.ranks and all(seen.last_output_at is None for seen in case.seen.ranks):
        yield Verdict(
            "never-printed",
            f"the time limit of {seconds:g} s was reached, and no rank had printed a single line",
            evidence=tuple(evidence),
            fix="see where it was below, and let the script print or report() what it does; windlass.train.report "
            "shows progress",
            score=80,
        )


def _last(case: Case, kind: str) -> Mapping[str, Any]:
    """What the newest event of a kind carries; empty where there is none since the run was last resumed."""
    for event in reversed(case.seen.events):
        if event.kind == kind:
            return event.data
        if event.kind == "resume":
            break
    return {}


def _still_there(case: Case) -> list[str]:
    """Where the ranks were when they were ended."""
    silence = case.seen.silence()
    lines = []
    if silence is not None:
        lines.append(f"no rank had written anything for {silence.seconds:.3g} s")
        for rank, stack in sorted(silence.stacks.items())[:8]:
            place = case.at(own_frame(main_stack(stack), case.seen.code_dir, innermost_first=True))
            lines.append(f"{case.name(rank)} was at {place}" if place else f"{case.name(rank)} has no Python stack")
    return lines


def lost(case: Case) -> Iterator[Verdict]:
    """Whoever kept the run is gone, and the ranks with it."""
    if case.status.phase is not Phase.LOST:
        return
    booted_at = case.seen.facts.get("booted_at")
    last_at = max((event.time for event in case.seen.events if event.kind != "end"), default=case.status.created_at)
    began_at = case.status.created_at
    words = str(case.seen.facts.get("keeper_words") or "")
    if booted_at is not None and booted_at > began_at:
        summary, fix = "the machine was restarted while the run went on", "start it again; a script that loads its "
        fix += "newest checkpoint goes on from there"
        evidence = [f"the machine came up {booted_at - began_at:.0f} s after the run had begun"]
    elif words:
        summary, fix = "the run's supervisor broke", "this is a defect of Windlass: report it with these lines"
        evidence = list(last_lines(words, 5))
    else:
        summary = "the run's supervisor and its workers were killed together"
        fix = "see who ends processes here (systemd, a container that ended, kill -9); then start it again"
        evidence = (
            [f"the last thing known of it: {case.seen.events[-2].kind}, {last_at - began_at:.0f} s after its begin"]
            if (len(case.seen.events) > 1)
            else []
        )
    yield Verdict("lost", summary, evidence=tuple(evidence), fix=fix, score=100)


def node_killed(case: Case) -> Iterator[Verdict]:
    """A node worker died without its last word."""
    number = case.cause.get("node_lost")
    if number is None or case.status.phase is not Phase.FAILED:
        return
    words = next((node.words for node in case.seen.nodes if node.node == number), "")
    gone = [seen.rank for seen in case.seen.ranks if seen.node == number]
    ranks = f"rank{'s' if len(gone) > 1 else ''} {', '.join(map(str, gone))}"
    if "Traceback" in words:
        yield Verdict(
            "worker-broke",
            f"the worker of node {number} broke, and {ranks} with it",
            evidence=last_lines(words, 6),
            fix="this is a defect of Windlass: report it with these lines",
            score=100,
        )
        return
    yield Verdict(
        "node-killed",
        f"the worker of node {number} was killed, and {ranks} with it",
        evidence=(f"node {number} ended without its last word; its ranks have not failed by themselves",),
        fix="see who ended it (kill -9, the kernel for want of memory: dmesg); restarts: {max: 3, on: [node-loss]} "
        "starts it again by itself",
        score=100,
    )


_NO_START = re.compile(r"could not start: (?P<what>.*)", re.DOTALL)


def could_not_start(case: Case) -> Iterator[Verdict]:
    """Nothing of the job ever ran."""
    if not case.failed:
        return
    said = _NO_START.match(str(case.cause.get("summary", ""))) if case.first is None else _NO_START.match(case.text)
    if said is None:
        return
    what = said["what"].strip()
    rank = case.first.rank if case.first else None
    if port := re.search(r"port (\d+) cannot be reserved", what):
        yield Verdict(
            "port-taken",
            f"port {port[1]}, where the ranks were to meet, is in use by another program",
            evidence=(what,),
            fix=f"leave local.port out: a free one is then reserved; or see who has it: ss -ltnp 'sport = :{port[1]}'",
            score=100,
        )
        return
    if what.startswith("cannot go on from "):  # before what its reason says: that is about the checkpoint
        fix = f"name another one, or none: windlass resume {case.status.id} takes the newest that is whole"
        yield Verdict("could-not-start", f"the ranks could not be started: {what}", rank, (what,), fix, 100)
        return
    quoted = re.search(r"'([^']+)'", what)
    program = quoted[1] if quoted else re.split(r": (?=[A-Z])", what)[0]
    if "No such file or directory" in what:
        code = "interpreter-missing" if case.seen.python and program == case.seen.python else "program-missing"
        thing = "the script's interpreter" if code == "interpreter-missing" else "the program"
        fix = "set python: to an interpreter that is there, or make the environment again"
        if code == "program-missing":
            fix = "check its path and, for a script, the interpreter that its first line (#!) names"
        yield Verdict(code, f"{thing} could not be started: {program} is not there", rank, (what,), fix, 100)
    elif "Permission denied" in what:
        fix = f"chmod +x {program}, or check who owns its folders"
        yield Verdict("permission-denied", f"{program} may not be run or written", rank, (what,), fix, 100)
    elif "No space left" in what:
        yield Verdict("disk-full", "no space was left to begin the run", rank, (what,), "free some space", 100)
    else:
        fix = "begin the file with a line such as #!/bin/sh" if "format error" in what else "see: windlass doctor"
        yield Verdict("could-not-start", f"the ranks could not be started: {what}", rank, (what,), fix, 99)


def log_incomplete(case: Case) -> Iterator[Verdict]:
    """A full disk under the record: no cause of an end, but the logs may lack what says more."""
    dropped, is_full = case.status.dropped, bool(case.seen.facts.get("record_disk_full"))
    if not (dropped or is_full):
        return
    evidence = [
        f"rank {one.rank} of attempt {one.attempt}: {one.num_bytes} bytes ({one.num_lines} lines) were not kept"
        for one in dropped[:8]
    ]
    if is_full:
        evidence.append("it is full now: the record takes the end of a run, and nothing that can wait")
    was = "is" if is_full else "was"
    lack = ", and the logs lack what the ranks wrote meanwhile" if dropped else ""
    yield Verdict(
        "log-incomplete" if dropped else "record-disk-full",
        f"the disk under the record {was} full{lack}",
        evidence=tuple(evidence),
        fix="free space under WINDLASS_HOME, or set it to a folder on another disk",
        score=5,
    )
