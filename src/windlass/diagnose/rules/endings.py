"""Rules on runs that ended, or did not start, without a rank failing by itself."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import Final

from windlass.diagnose.flights import named, verb
from windlass.diagnose.observations import Observations
from windlass.diagnose.reading import collective, last_lines, main_stack, own_frame
from windlass.diagnose.rules.restarts import deaths, resumed
from windlass.diagnose.verdict import Verdict
from windlass.runs.events import (
    REMOVED_BEFORE,
    CheckpointChanged,
    NodeLost,
    NodeStarted,
    PreemptionNotice,
    RunEnded,
    RunResumed,
    ShutdownBegun,
    StopRequested,
    Warned,
    entries,
    of_newest_attempt,
)
from windlass.runs.phase import Phase
from windlass.runs.warnings import DISK_FIX
from windlass.spec.labels import SERVICE_LABEL, command_of_service
from windlass.worker.protocol import GRACE_OVER, MORE_GRACE

DEFECT: Final = "this is a defect of Windlass: report it with these lines"
NOT_UPLOADED: Final = re.compile(r"the outputs could not be uploaded: (?P<what>.*)", re.DOTALL)
CANNOT_UPLOAD: Final = re.compile(r"the outputs cannot be uploaded: (?P<what>.*)", re.DOTALL)
NOT_STAGED: Final = re.compile(r"the data could not be staged: (?P<what>.*)", re.DOTALL)
CANNOT_IMPORT: Final = ("ImportError", "ModuleNotFoundError", "SyntaxError")
"""Exceptions of a worker whose interpreter is too old, or lacks a part of the standard library."""
CUT_OFF: Final = re.compile(r"node \d+ cannot be reached by the others")
NO_CODE: Final = re.compile(r"the code could not be fetched: (?P<what>.*)")
"""Pattern of the message of `worker/boot.py` about code that could not be fetched."""
NO_START: Final = re.compile(r"could not start: (?P<what>.*)", re.DOTALL)


def stopped(case: Observations) -> Iterator[Verdict]:
    """Explains that the user, or the shutdown of the node, ended the run."""
    status = case.status
    if status.phase is not Phase.STOPPED and not (status.supervision.stop_requested and status.phase is Phase.LOST):
        return
    stop, end = case.last(StopRequested), case.last(RunEnded)
    if stop is None and end is not None and end.reason == "preemption":
        notice = case.last(PreemptionNotice)
        is_reclaimed = notice is not None and notice.source == "imds"
        what = "its node was to be reclaimed" if is_reclaimed else "SIGTERM, as from a node shutdown"
        summary = f"the run was ended from outside: {what}"
        fix = f"{resumed(case)}; restarts: {{max: 3, on: [preemption]}} does so automatically"
    elif end is not None and end.reason == "not-admitted":
        why = case.cause.summary or "it was not admitted"
        summary = f"the run never started: {why}"
        fix = f"windlass rerun {status.id} does not wait for it"
        if REMOVED_BEFORE not in why:
            fix = f"once it has succeeded, windlass resume {status.id}; {fix}"
    elif stop is not None and stop.reason == "removed":
        summary = "the run was removed from the cluster"
        fix = f"nothing to fix; windlass rm {status.id} removes the record of this machine"
    elif stop is not None and stop.reason == "queue":
        summary, fix = "the run was stopped by its queue: its Workload was deactivated", resumed(case)
    else:
        summary = "stopped by the user" + (" without grace" if stop is not None and stop.now else "")
        fix = f"nothing to fix; {resumed(case)}"
    if cut := _cut(case):
        summary, fix = f"{summary}; {cut}", f"{_more_grace(case)}; {resumed(case)}"
    yield Verdict("stopped", summary, None, tuple(_last_places(case)), fix, 100)


def timeout(case: Observations) -> Iterator[Verdict]:
    """Explains that the job's time limit was reached."""
    if not case.timed_out:
        return
    seconds = case.plan.policy.timeout_seconds or 0
    reached = f"the time limit of {seconds:g} s was reached"
    evidence = [f"timeout: {seconds:g} s, all attempts together"]
    progress = case.status.progress
    if progress.step is not None:
        total = f" of {progress.total}" if progress.total is not None else ""
        evidence.append(f"it had reached step {progress.step}{total}")
    newest = len(case.status.attempts)
    evidence += [
        f"attempt {number} failed: {cause.summary[:200]}" for number, cause in deaths(case) if number < newest
    ][-3:]
    evidence += _last_places(case)
    more_time = f"windlass resume {case.status.id} --timeout TIME gives it more"
    fix = f"{resumed(case)} with the same time limit; --timeout TIME sets a longer one"
    if kind := case.status.about.labels.get(SERVICE_LABEL):
        reached = "the service has ended at its time limit"
        fix = f"nothing to fix: {command_of_service(kind)} starts another, and --for TIME sets a longer limit"
    cut = _cut(case)
    if cut and kind is None:
        reached, fix = f"{reached}; {cut}", f"{_more_grace(case)}; {fix}"
    yield Verdict("timeout", reached, None, tuple(evidence), fix, 100 if kind else 85 if cut else 70)
    is_started = any(state.pid is not None for state in case.status.ranks)
    if case.status.ranks and not is_started and case.plan.nodes.setup and _has_begun(case):
        output = [line for seen in case.ranks for line in last_lines(seen.tail)]
        yield Verdict(
            "never-started",
            f"{reached} while the setup script of the job ran",
            None,
            (*evidence, *output),
            f"see what it waits for: windlass logs {case.status.id}; {more_time}",
            90,
        )
    elif case.status.ranks and not is_started:
        yield Verdict(
            "never-started",
            f"{reached} before any rank was started",
            None,
            (*evidence, "a warm process imports what the script imports before it forks the ranks"),
            f"see whether this machine is overloaded; {more_time}, and with --cold it starts cold",
            90,
        )
    elif case.ranks and all(seen.last_output_at is None for seen in case.ranks):
        which = f"no rank of attempt {newest}" if newest > 1 else "no rank"
        yield Verdict(
            "never-printed",
            f"{reached}, and {which} had printed a single line",
            None,
            tuple(evidence),
            "see where it was, and let the script print or report() what it does; windlass.train.report shows progress",
            80,
        )


def _cut(case: Observations) -> str:
    """Returns `rank 0 received SIGTERM and had not exited 10 s later …`; empty if the grace period sufficed.

    A rank without a SIGTERM handler ends at once. A rank that waits in a collective does not reach its handler, however
    long the grace period is.
    """
    own = of_newest_attempt(case.events)
    if all(warned.code != GRACE_OVER for warned in entries(own, Warned)):
        return ""
    silence = case.silence()
    stacks = silence.stacks if silence is not None else {}
    killed = [seen.rank for seen in case.ranks if seen.exit_code == -signal.SIGKILL and seen.ended_by_us]
    if not killed or all(collective(main_stack(stacks.get(rank, "")), case.sources) for rank in killed):
        return ""
    since = next((event.seq for event in own if event.kind == ShutdownBegun.kind), 0)
    saves = sum(one.action == "saved" for one in entries([e for e in own if e.seq > since], CheckpointChanged))
    recorded = f"{saves} saves were" if saves != 1 else "1 save was"
    return (
        f"{named(killed)} received SIGTERM and had not exited {case.grace_seconds:g} s later (grace), so "
        f"{verb(killed, 'it was', 'they were')} killed: {recorded} recorded after the signal"
    )


def _more_grace(case: Observations) -> str:
    told = [one for one in entries(of_newest_attempt(case.events), Warned) if one.code == GRACE_OVER]
    if told and told[-1].fix not in ("", MORE_GRACE):
        return told[-1].fix
    return f"raise grace: (now {case.grace_seconds:g} s) above the script's longest step, evaluation and save included"


def _last_places(case: Observations) -> list[str]:
    silence = case.silence()
    if silence is None:
        return []
    lines = [f"no rank had written anything for {silence.seconds:.3g} s"]
    for rank, stack in sorted(silence.stacks.items())[:8]:
        place = case.at(own_frame(main_stack(stack), case.code_dir, innermost_first=True))
        at = f"{case.name(rank)} was at {place}" if place else f"{case.name(rank)} has no Python stack"
        lines.append(case.kept(rank, stack) or at)
    return lines


def lost(case: Observations) -> Iterator[Verdict]:
    """Explains that the supervisor and the ranks are gone."""
    if case.status.phase is not Phase.LOST:
        return
    booted_at, began_at = case.machine.booted_at, case.status.times.created_at
    resumed_at = [event.time for event in case.events if event.kind == RunResumed.kind]
    since, begun = (resumed_at[-1], "was resumed") if resumed_at else (began_at, "had begun")
    crash = case.supervisor_traceback
    if booted_at is not None and booted_at > since:
        summary = "the machine was restarted during the run"
        evidence = [f"the machine booted {booted_at - since:.0f} s after the run {begun}"]
        fix = resumed(case)
    elif crash:
        summary, evidence = "the run's supervisor crashed", list(last_lines(crash, 5))
        fix = f"{DEFECT}; {resumed(case)}"
    else:
        summary = "the run's supervisor and its workers were killed together"
        last_at = max((event.time for event in case.events if event.kind != "end"), default=began_at)
        evidence = [f"its last event: {case.events[-2].kind}, {last_at - began_at:.0f} s after it began"] * (
            len(case.events) > 1
        )
        fix = f"see what ends processes here (systemd, a container that ended, kill -9); then {resumed(case)}"
    yield Verdict("lost", summary, None, tuple(evidence), fix, 100)


def node_killed(case: Observations) -> Iterator[Verdict]:
    """Explains that a worker exited without reporting."""
    number = case.cause.node_lost
    if number is None or case.status.phase is not Phase.FAILED:
        return
    output = next((node.words for node in case.nodes if node.node == number), "")
    ranks = named([seen.rank for seen in case.ranks if seen.node == number])
    again = f"then {resumed(case)}; restarts: {{max: 3, on: [node-loss]}} does so automatically"
    losses = [one.why for one in entries(of_newest_attempt(case.events), NodeLost) if one.node == number]
    if found := NO_CODE.search("\n".join([output, *losses])):
        yield Verdict(
            "code-not-fetched",
            f"the pod of node {number} could not fetch the code: {found['what']}",
            None,
            (found[0], "no rank was started"),
            f"name the credentials in secrets:, or correct storage: of the target, for a new run: windlass rerun "
            f"{case.status.id}",
            100,
        )
        return
    if CUT_OFF.fullmatch(case.cause.summary):
        yield Verdict(
            "node-unreachable",
            f"the network between node {number} and the others was interrupted",
            None,
            (f"the others had no heartbeat of node {number}", f"the supervisor then killed its worker, with {ranks}"),
            f"see whether its link is up, and what drops packets between the nodes; {again}",
            100,
        )
        return
    if (lines := last_lines(output, 6)) and not _has_begun(case, number):
        # In a pod, the last output may come from another program, which ran before a killed worker.
        is_its_own = "Traceback" not in output and case.plan.runs_here
        if is_its_own or lines[-1].startswith(CANNOT_IMPORT):
            python = case.python or "the interpreter"
            yield Verdict(
                "interpreter-broken",
                f"the worker of node {number} could not start under {python}",
                None,
                lines,
                f"try: {python} --version; set python: to one of Python 3.9 or newer that works",
                100,
            )
            return
    if "Traceback" in output:
        yield Verdict(
            "worker-broke",
            f"the worker of node {number} crashed, and {ranks} with it",
            None,
            last_lines(output, 6),
            DEFECT,
            100,
        )
        return
    yield Verdict(
        "node-killed",
        f"the worker of node {number} was killed, and {ranks} with it",
        None,
        (f"the worker of node {number} exited without reporting; its ranks have not failed by themselves",),
        f"see what ended it (kill -9, the kernel for lack of memory: dmesg); {again}",
        100,
    )


def _has_begun(case: Observations, node: int | None = None) -> bool:
    """Whether the worker of this node, or of any node by default, has reported an event in the newest attempt."""
    return any(node in (None, started.node) for started in entries(of_newest_attempt(case.events), NodeStarted))


def data_not_staged(case: Observations) -> Iterator[Verdict]:
    """Explains that a data set could not be staged."""
    found = NOT_STAGED.match(case.cause.summary) if case.failed else None
    if found is not None:
        fix = (
            f"windlass data ls ADDRESS shows what can be read of it; then windlass resume {case.status.id}, which "
            "fetches no file again; where the job names the wrong address, correct it there, for a new run"
        )
        summary = f"the data could not be staged: {found['what']}"
        yield Verdict("data-not-staged", summary, None, ("no rank was started",), fix, 100)


def data_locked(case: Observations) -> Iterator[Verdict]:
    """Explains that the run waits because another process is fetching its data set."""
    progress = case.status.progress
    if case.status.phase is Phase.STAGING and (holder := progress.waits_for):
        fix = f"check whether {holder} makes progress; if not, end it: the next process continues the copy"
        yield Verdict("data-locked", progress.message, None, ("no rank was started",), fix, 50)


def outputs_not_uploaded(case: Observations) -> Iterator[Verdict]:
    """Explains that the ranks succeeded, but the outputs could not be uploaded."""
    found = NOT_UPLOADED.match(case.cause.summary) if case.failed else None
    if found is not None:
        summary = f"the ranks have succeeded, and the outputs could not be uploaded: {found['what']}"
        fix = f"mend that; then windlass resume {case.status.id} uploads what is missing, and starts no rank"
        evidence = (f"the outputs are in {case.status.output_dir}",)
        yield Verdict("outputs-not-uploaded", summary, None, evidence, fix, 100)


def outputs_refused(case: Observations) -> Iterator[Verdict]:
    """Explains that a check during training found that the store refuses the outputs."""
    found = CANNOT_UPLOAD.match(case.cause.summary) if case.failed else None
    if found is not None:
        summary = f"the outputs could not have been uploaded at the end: {found['what']}"
        evidence = ("its store was asked while the ranks trained, and they were ended before their first checkpoint",)
        fix = f"mend that; then {resumed(case)}; where the job names the wrong store: windlass rerun {case.status.id}"
        yield Verdict("outputs-refused", summary, None, evidence, f"{fix} --set outputs=ADDRESS", 100)


def could_not_start(case: Observations) -> Iterator[Verdict]:
    """Explains that no process of the job ever ran."""
    if not case.failed:
        return
    found = NO_START.match(case.cause.summary if case.first is None else case.text)
    if found is None:
        return
    what = found["what"].strip()
    if port := re.search(r"port (\d+) cannot be reserved", what):
        yield Verdict(
            "port-taken",
            f"port {port[1]}, where the ranks were to meet, is in use by another program",
            None,
            (what,),
            f"leave local.port out: a free one is then reserved; or see which has it: ss -ltnp 'sport = :{port[1]}'",
            100,
        )
        return
    code, summary, fix, score = _no_start(case, what)
    yield case.of_first(code, summary, (what,), fix, score)


def _no_start(case: Observations, what: str) -> tuple[str, str, str, float]:
    """Returns code, summary, fix and score for a message of the system."""
    general = f"the ranks could not be started: {what}"
    # This prefix is tested first, because the rest of the message is about the checkpoint.
    if what.startswith("cannot resume from "):
        fix = f"name another one, or none: windlass resume {case.status.id} takes the newest that is verified"
        return "could-not-start", general, fix, 100
    quoted = re.search(r"'([^']+)'", what)
    program = quoted[1] if quoted else re.split(r"[:,] (?=[A-Z])", what)[0]
    if "No such file or directory" in what and case.python and program == case.python:
        return (
            "interpreter-missing",
            f"the script's interpreter could not be started: {program} does not exist",
            "set python: to an interpreter that is there, or create the environment again",
            100,
        )
    if "No such file or directory" in what:
        return (
            "program-missing",
            f"the program could not be started: {program}, or the interpreter in its first line, does not exist",
            "check its path and, for a script, the first line (#!)",
            100,
        )
    if "Permission denied" in what:
        fix = f"chmod +x {program}, or check the owner of its folders"
        return "permission-denied", f"{program} may not be run or written", fix, 100
    if "No space left" in what:
        return "disk-full", "no space was left to begin the run", "free some space", 100
    fix = "begin the file with a line such as #!/bin/sh" if "format error" in what else "see: windlass doctor"
    return "could-not-start", general, fix, 99


def record_disk_full(case: Observations) -> Iterator[Verdict]:
    """Explains that the disk of the record is full. The run continues, but the record lacks events that can wait."""
    if case.machine.is_record_disk_full:
        yield Verdict(
            "record-disk-full",
            "the disk under the record is full",
            None,
            ("the record keeps the end of a run, and nothing that can wait",),
            DISK_FIX,
            5,
        )
