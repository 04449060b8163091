"""One node of one attempt: starts the ranks of a node spec, forwards their output and signals, reports how each ended.

What it reports goes as JSON lines into its events file; `protocol.py` has the kinds of events.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from windlass.worker import devices, netns, output_size, process, resume
from windlass.worker.capture import Capture, Echo
from windlass.worker.event_log import EventLog
from windlass.worker.heartbeat import Heartbeat
from windlass.worker.host_facts import HostFacts
from windlass.worker.port_listeners import IN_USE, listeners
from windlass.worker.protocol import (
    STACKS_SIGNAL,
    STOP_NOW_SIGNAL,
    STOP_SIGNALS,
    CheckpointReported,
    Dropped,
    FirstStep,
    LossNotFinite,
    NodeEnded,
    NodeSpec,
    NodeStarted,
    NodeWarning,
    OutputBegan,
    PeersUnreachable,
    PreemptionNotice,
    ProgressMade,
    RankChanged,
    RankFailing,
    RankFailure,
    RanksAlone,
    RankSpec,
    StacksTaken,
)
from windlass.worker.rank import DONE_VARIABLE
from windlass.worker.rank_start import Start
from windlass.worker.ranks import Rank
from windlass.worker.rendezvous_check import ALONE, looks_alone
from windlass.worker.reserve import Reserve
from windlass.worker.setup_step import SetupStep
from windlass.worker.stack_dump import ask_after_failure, flights_of, forget, take_stacks, waited_in_vain
from windlass.worker.tracebacks import with_error_file
from windlass.worker.values import ShapeError

if TYPE_CHECKING:
    from windlass.worker.statusserver import StatusServer

ROUND_SECONDS = 0.004
"""Pause between rounds of reading: lines that arrive within it share one index record and one wake-up."""
MAX_ROUND_SECONDS = 600.0
PROGRESS_SECONDS = 0.2
FULL_DISK_PATIENCE_SECONDS = 600.0
RESERVE_BYTES_PER_RANK = 32 << 10
"""Kept back for the node's last events: a failure is reported with the last 16 KiB of the rank's output."""
MAX_RESERVE_BYTES = 1 << 20
TAIL_CHARS = 16384
DROPPED_SECONDS = 30.0
"""How often it is reported how much a log lacks, while that grows."""
FAILURE_GRACE_SECONDS = 3.0
"""What is left to ranks whose peer has failed: they cannot train on, and the next attempt waits for them."""
MARK_SECONDS = 0.25
"""How often the marks of live ranks are read: one that has failed may hang in its exit handlers."""
RENDEZVOUS_CHECK_SECONDS = 15.0
"""After the first progress, and again so much later, to the check whether the ranks have met."""
EXIT_SECONDS = 3.0
"""How long a rank that has marked its failure may take to exit before the other ranks are ended."""
STATUS_URL = "KUBEFLOW_TRAINER_SERVER_URL"


class Node:
    """Runs the ranks of one node until all have ended."""

    def __init__(self, spec: NodeSpec, wake: int | None, start: Start, echo: Echo | None = None) -> None:
        """`wake` gets a byte at each event; `echo` all that is written to files, where no other process reads these."""
        self.spec = spec
        self.start = start
        self.echo = echo
        self.folder = spec.folder
        size = min(MAX_RESERVE_BYTES, RESERVE_BYTES_PER_RANK * (1 + len(spec.ranks)))
        self.reserve = Reserve(spec.path("reserve"), size, is_shared=False)
        self.dropped_reported: dict[int, tuple[float, int]] = {}
        """For each rank whose log lacks something: when that was last reported, and how many bytes it lacked."""
        self.events = EventLog(spec.path("events"), self.reserve, wake, echo)
        self.selector = selectors.DefaultSelector()
        self.ranks: list[Rank] = []
        self.has_output = False
        self.first_step_of: int | None = None
        """The rank whose first step was reported: one rank's is enough, as for progress."""
        self.progress_at = 0.0
        self.progress_sent: dict[str, object] = {}
        self.ended_by = "itself"
        self.kill_at: float | None = None
        self.status_server: StatusServer | None = None
        self.rendezvous_check_at: float | None = None
        """When to check next whether the ranks have met; 0 once that is settled."""
        self.rendezvous_checks = 0
        self.marks_at = 0.0
        """When to read the ranks' marks next, by the monotonic clock."""
        self.host_facts = HostFacts()
        self.listeners: list[dict[str, Any]] = []
        """Who listened on which port when a rank found its port in use."""
        self.heartbeat: Heartbeat | None = None
        self.own_failures: list[RankFailure] = []
        """Those of ranks that could not be started, and of an external launcher."""

    # -- life ---------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Start, watch and end the ranks; 0 if all succeeded."""
        process.adopt_orphans()
        if not self.reserve.make():
            self.reserve.make(margin_bytes=0)
        self._handle_signals()
        me = process.stat(os.getpid())
        ticks = me.start_ticks if me else 0
        self.events.add(NodeStarted(time.time(), os.getpid(), ticks, process.boot_id(), self.start.name))
        for found in self.spec.found:
            self._report_checkpoint(self.spec.ranks[0].rank, found)
        if self.spec.network is not None:
            self._watch_for_notices()  # a network namespace has no route to the instance metadata
        if self._enter_network() and self._set_up():
            self._start_ranks()
        if self.spec.network is None:
            self._watch_for_notices()
        while self._live():
            self._round()
        process.end_descendants()
        if self.status_server is not None:
            self.status_server.close()
        if self.heartbeat is not None:
            self.heartbeat.close()
        self._drain_to_the_end()
        self._flush_progress()
        self._warn_if_nothing_saved()
        failures = self.failures()
        facts = self._facts() if failures else {}
        alone = tuple(rank.number for rank in self.ranks if os.path.exists(rank.base + ALONE))
        self.events.add(NodeEnded(time.time(), tuple(failures), self.ended_by, facts, alone, self._kept_outputs()))
        self._write_end()
        self.reserve.release()
        return 1 if failures else 0

    def _kept_outputs(self) -> int:
        """The bytes of outputs that are kept for the supervisor; 0 for none, and with a warning for too many."""
        if not (most := self.spec.outputs_max):
            return 0
        found = output_size.measure(self.spec.env["WINDLASS_OUTPUT_DIR"])
        if found.is_within(most):
            return max(1, found.bytes)
        if found.files:
            self._warn(
                f"node {self.spec.node}: its outputs are deleted with its pod: {found.bytes:,} bytes in "
                f"{found.files:,} files, and at most {most:,} in {output_size.MAX_FILES:,} come home; set "
                "kubernetes.outputs_max, or keep them in a claim: kubernetes: {results: {size: 20GiB}}"
            )
        return 0

    def _enter_network(self) -> bool:
        """Move into the network of this node, if it has one; gives whether its ranks can be started."""
        try:
            if self.spec.network is not None:
                netns.enter(self.spec.network, self.folder)
            if self.spec.heartbeat is not None:
                self.heartbeat = Heartbeat(self.spec.heartbeat)
                self.selector.register(self.heartbeat.socket, selectors.EVENT_READ, self.beat)
        except OSError as error:
            self._fail_to_start(self.spec.ranks[0].rank, error)
            return False
        return True

    def _set_up(self) -> bool:
        """Run the job's script that comes before the ranks, if it has one; gives whether the ranks can be started."""
        if not self.spec.setup:
            return True
        try:
            return SetupStep(self).run()
        except OSError as error:
            self._fail_to_start(self.spec.ranks[0].rank, error)
            return False

    def fail_before_ranks(self, rank: int, exit_code: int, tail: str, *, ended_by_us: bool = False) -> None:
        """Report that no rank is started since what comes before them has failed, or was stopped."""
        self.own_failures.append(failure(rank, exit_code, time.time(), tail, ended_by_us=ended_by_us))
        if not ended_by_us:
            self.events.add(RankFailing(time.time(), rank))  # the ranks of the other nodes would wait for it
            self._end_others(by="failure")

    def _start_ranks(self) -> None:
        """Start all ranks, up to the first that cannot be started."""
        for spec in self.spec.ranks:
            try:
                self._start_rank(spec)
            except OSError as error:
                self._fail_to_start(spec.rank, error, spec.argv[0])
                return

    def _fail_to_start(self, rank: int, error: OSError, program: str = "") -> None:
        """Report that a rank could not be started, and end the others."""
        words = [program, str(error.strerror or error)] if program else [str(error.strerror or error)]
        self.own_failures.append(failure(rank, 127, time.time(), f"could not start: {': '.join(words)}"))
        self.events.add(RankFailing(time.time(), rank))  # the ranks of the other nodes would wait for it
        self._end_others(by="failure")

    def _start_rank(self, spec: RankSpec, environ: Mapping[str, str] = os.environ, beside: int = 0) -> None:
        """Start one rank. `environ` is what it inherits from the node or an external launcher. Raises OSError.

        `beside` is the process whose network it shares, where that is not the node's own.
        """
        number = spec.rank
        done = os.path.join(self.folder, f"rank-{number}.done")
        env = {**environ, **self.spec.env, **spec.env, DONE_VARIABLE: done}
        env.update({**self._status_environment(number, env), **devices.of_jax(env)})
        read, write = os.pipe()
        try:
            pid = self.start(list(spec.argv), self.spec.cwd, env, write, beside)
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        capture = Capture(read, self.folder, number, self.spec.progress, self.echo, self.reserve)
        rank = Rank(number, pid, capture, done)
        self.ranks.append(rank)
        self.selector.register(read, selectors.EVENT_READ, rank)
        self.events.add(RankChanged(time.time(), number, pid=pid))

    def _watch_for_notices(self) -> None:
        """Start the process that polls this machine's metadata for preemption notices, if the spec has them."""
        if self.spec.notices is None:
            return
        read, write = os.pipe()
        os.set_blocking(read, False)
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "preemption_notice.py")
        try:
            popen = subprocess.Popen(
                [self.spec.worker_python, "-I", "-S", script, json.dumps(self.spec.notices.to_json())],
                stdin=subprocess.DEVNULL, stdout=write, preexec_fn=process.Birth(),
            )  # fmt: skip
            popen.returncode = 0  # it ends with the node, and is collected by its pid
            self.selector.register(read, selectors.EVENT_READ, lambda: self._take_notices(read))
        except OSError as error:
            os.close(read)
            self._warn(f"preemption notices of this machine are not polled: {error.strerror or error}")
        finally:
            os.close(write)

    def _take_notices(self, source: int) -> None:
        """Report what the polling process has written: a line at a time, each in one piece."""
        try:
            data = os.read(source, 65536)
        except BlockingIOError:
            return
        if not data:
            self.selector.unregister(source)
            os.close(source)
        for line in data.splitlines():
            self.events.add(PreemptionNotice(time.time(), **json.loads(line)))

    def _status_environment(self, rank: int, env: Mapping[str, str]) -> dict[str, str]:
        """Where this rank may post its progress, if the spec has these variables."""
        if STATUS_URL not in self.spec.known_at_start:
            return {}
        if self.status_server is None:
            from windlass.worker.statusserver import StatusServer  # for Python scripts alone

            try:
                self.status_server = StatusServer(self.selector, self.spec.path("token"), self._take_post)
            except OSError:
                return {}  # progress is then read from the output alone
        return self.status_server.environment(rank, env)

    def _take_post(self, number: int, progress: dict[str, Any]) -> None:
        for rank in self.ranks:
            if rank.number == number:
                rank.capture.report(progress)

    def _live(self) -> bool:
        return any(rank.exit_code is None for rank in self.ranks)

    def _round(self) -> None:
        """Wait for output, a signal, a death or a moment that is due; take all there is; then let more gather."""
        ready = self.selector.select(max(0.0, min([MAX_ROUND_SECONDS, *self._due()])))
        now_ns = time.time_ns()
        busy = False
        for key, _ in ready:
            if key.data is None:
                self.take_signals()
            elif not isinstance(key.data, Rank):
                key.data()
            else:
                busy = True
                self._drain(key.data, now_ns)
        self._reap()
        self._read_marks()
        self.beat()
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            self._kill_all()
        self.events.write()
        self._report_progress()
        self._check_rendezvous()
        if busy:
            time.sleep(ROUND_SECONDS)

    def _due(self) -> list[float]:
        """Seconds until the grace period ends, held-back progress is due, and the like."""
        now = time.monotonic()
        due = [self.kill_at - now] if self.kill_at is not None else []
        if self._newest_progress() != self.progress_sent and not self.events.is_held_up:
            due.append(self.progress_at + PROGRESS_SECONDS - now)
        if self.events.is_waiting:
            due.append(1.0)
        if self.heartbeat is not None:
            due.append(self.heartbeat.due())
        if self.ended_by == "itself" and any(rank.exit_code is None for rank in self.ranks):
            due.append(self.marks_at - now)
        return due

    def beat(self) -> None:
        """Send and read heartbeats, and report which nodes are silent."""
        if self.heartbeat is not None and self.heartbeat.turn():
            self.events.add(PeersUnreachable(time.time(), self.heartbeat.silent))

    # -- output -------------------------------------------------------------------------------------------------------

    def _drain(self, rank: Rank, now_ns: int) -> None:
        if rank.open and not rank.capture.drain(now_ns):
            rank.open = False
            self.selector.unregister(rank.capture.source)
        for found in rank.capture.take_checkpoints():
            self._report_checkpoint(rank.number, found)
        for change in rank.capture.take_losses():
            self.events.add(LossNotFinite(time.time(), rank.number, more=change))
        self._report_first_step(rank)
        if not self.has_output and rank.capture.has_output:
            self.has_output = True
            self.events.add(OutputBegan(time.time()))
        if rank.capture.dropped_bytes and self.echo is None:
            self._report_dropped(rank)

    def _report_first_step(self, rank: Rank, *, at_end: bool = False) -> None:
        if self.first_step_of in (None, rank.number):
            first = rank.capture.take_first_steps(at_end=at_end)
            if first is not None:
                self.first_step_of = rank.number
                self.events.add(FirstStep(time.time(), rank.number, first))

    def _drain_to_the_end(self) -> None:
        """All ranks have ended: read the rest of their pipes."""
        for rank in self.ranks:
            self._drain(rank, time.time_ns())
            self._report_first_step(rank, at_end=True)
            rank.capture.close()
            forget(rank)
            if rank.capture.dropped_bytes and self.echo is None:
                self._report_dropped(rank, at_once=True)

    def _report_dropped(self, rank: Rank, *, at_once: bool = False) -> None:
        """Report how much the log of a rank lacks since the disk was full, if that is more than was reported."""
        num_bytes, num_lines = rank.capture.dropped_bytes, rank.capture.dropped_lines
        at, known = self.dropped_reported.get(rank.number, (-DROPPED_SECONDS, 0))
        if num_bytes == known or not (at_once or time.monotonic() - at >= DROPPED_SECONDS):
            return
        self.dropped_reported[rank.number] = (time.monotonic(), num_bytes)
        text = f"rank {rank.number}: no space left, {num_bytes} bytes ({num_lines} lines) of its log were not kept"
        self._warn(text, Dropped(rank.number, num_bytes, num_lines))

    def _warn_if_nothing_saved(self) -> None:
        """Report that no file matches the job's pattern for checkpoints: a restart would begin anew."""
        request, since = self.spec.resume, self.spec.since
        if request is None or self.spec.ranks[0].rank != 0:
            return
        try:
            if resume.candidates(request, since):
                return
            event = resume.missing(request, since)
            if self.first_step_of is not None or event["entries"]:  # else it may not have come so far
                self._report_checkpoint(0, {**event, "at_end": True})
        except OSError:
            pass  # the folder can no longer be read, which the ranks have logged if it matters

    def _newest_progress(self) -> dict[str, object]:
        reporting = [rank for rank in self.ranks if rank.capture.progress]
        if not reporting:
            return {}
        progress = {"rank": reporting[0].number, **reporting[0].capture.progress}
        rates = [rank.capture.progress.get("samples_per_second") for rank in reporting]
        known = [rate for rate in rates if isinstance(rate, (int, float))]
        if known:
            progress["samples_per_second"] = round(sum(known), 1)
        return progress

    def _report_progress(self) -> None:
        if time.monotonic() - self.progress_at >= PROGRESS_SECONDS and not self.events.is_held_up:
            self._flush_progress()

    def _check_rendezvous(self) -> None:
        """Report, once, that the ranks make progress and have never met, where two checks agree on it."""
        now = time.monotonic()
        if self.rendezvous_check_at is None and self.progress_sent:
            self.rendezvous_check_at = now + RENDEZVOUS_CHECK_SECONDS
        if not self.rendezvous_check_at or now < self.rendezvous_check_at or not self._has_peers():
            return
        port = (self.status_server.port,) if self.status_server is not None else ()
        self.rendezvous_checks += 1
        self.rendezvous_check_at = now + RENDEZVOUS_CHECK_SECONDS if self.rendezvous_checks == 1 else 0.0
        if not all(rank.exit_code is None and looks_alone(rank.pid, rank.base, port) for rank in self.ranks):
            self.rendezvous_check_at = 0.0
        elif self.rendezvous_checks == 2:
            self.events.add(RanksAlone(time.time(), tuple(rank.number for rank in self.ranks)))

    def _flush_progress(self) -> None:
        progress = self._newest_progress()
        if progress and progress != self.progress_sent:
            self.progress_at = time.monotonic()
            self.progress_sent = progress
            self.events.add(ProgressMade(time.time(), progress))

    # -- signals and deaths -------------------------------------------------------------------------------------------

    def _handle_signals(self) -> None:
        read, write = os.pipe()
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in (*STOP_SIGNALS, STOP_NOW_SIGNAL, STACKS_SIGNAL, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self.signals = read
        self.selector.register(read, selectors.EVENT_READ, None)

    def take_signals(self) -> None:
        """Act on the signals that have arrived: a stop ends the ranks, or what runs before them."""
        try:
            numbers = os.read(self.signals, 4096)
        except BlockingIOError:
            return
        if STACKS_SIGNAL in numbers:
            self._dump_stacks()
        if STOP_NOW_SIGNAL in numbers:
            self.ended_by = "stop"
            self._kill_all()
        elif any(number in numbers for number in STOP_SIGNALS):
            self._note_sigterm()
            self._end_others(by="stop")

    def _note_sigterm(self) -> None:
        """Report a SIGTERM: the supervisor decides whether it has sent the signal itself, or the machine is shutting
        down."""
        if self.kill_at is None and self.ended_by == "itself":
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            self.events.add(PreemptionNotice(time.time(), "sigterm", "terminate", time=now))

    def _reap(self) -> None:
        """Reap ended ranks and adopted orphans. The first failure ends the other ranks."""
        dead = [rank for rank in self.ranks if rank.exit_code is None and self._is_dead(rank)]
        for rank in dead:
            process.send_group(rank.pid, signal.SIGKILL)  # what the rank has started ends with it
            self._drain(rank, time.time_ns())
            self.events.add(RankChanged(time.time(), rank.number, exit_code=rank.outcome()))
        failed = [rank for rank in dead if rank.outcome() != 0]
        if failed and self.ended_by == "itself":
            self._fail(failed[0])
        process.reap_orphans(self._children())

    def _fail(self, failed: Rank) -> None:
        """The first rank of this node has failed: report it, and end the others."""
        if IN_USE.search(failed.capture.tail):
            self.listeners = listeners({rank.pid for rank in self.ranks})  # now: it may be a rank that is ended next
        waited = waited_in_vain(failed.capture.tail)
        if waited:
            self._dump_stacks()
        else:
            live = [rank for rank in self.ranks if rank.exit_code is None and rank is not failed]
            ask_after_failure(failed, live)
        self.events.add(RankFailing(time.time(), failed.number, waited))
        self._end_others(by="failure")

    def _read_marks(self) -> None:
        """A rank that has marked its failure and does not exit has failed all the same.

        Its exit handlers may wait for the other ranks (the shutdown barrier of JAX does so for five minutes), and these
        wait for it. A rank that is alone has the job's grace period for what it does on its way out.
        """
        now = time.monotonic()
        if self.ended_by != "itself" or now < self.marks_at:
            return
        self.marks_at = now + MARK_SECONDS
        grace = self.spec.grace_seconds
        patience = min(grace, EXIT_SECONDS) if self._has_peers() else grace
        for rank in self.ranks:
            failed_at = rank.failed_at() if rank.exit_code is None else None
            if failed_at is not None and time.time() - failed_at >= patience:
                text = f"rank {rank.number} failed and has not exited for {patience:g} s: exit handlers run"
                self._warn(text)
                self._drain(rank, time.time_ns())
                self._fail(rank)
                return

    def _has_peers(self) -> bool:
        """Whether the attempt has more than one rank."""
        return self.spec.world_size > 1

    def _children(self) -> set[int]:
        """Pids of the processes that we wait for by name."""
        return {rank.pid for rank in self.ranks}

    def _dump_stacks(self) -> None:
        """Take the stacks of the live ranks. What they print then is no sign of life."""
        before = [(rank, rank.capture.has_output) for rank in self.ranks]
        live = [rank for rank in self.ranks if rank.exit_code is None]
        found = take_stacks(live, lambda rank: rank.capture.drain(time.time_ns()))
        for rank, had_output in before:
            rank.capture.has_output = had_output
        if found:
            self.events.add(StacksTaken(time.time(), found))

    def _facts(self) -> dict[str, Any]:
        output = self.spec.env.get("WINDLASS_OUTPUT_DIR", "")
        folders = [output, self.folder, self.spec.cwd, os.environ.get("TMPDIR", "/tmp")]
        facts = self.host_facts.facts([rank.pid for rank in self.ranks], [folder for folder in folders if folder])
        if self.listeners:
            facts["listeners"] = self.listeners
        if self.spec.held_port is not None:
            facts["held_port"] = self.spec.held_port
        return {**facts, "flights": flights_of(self.ranks)}

    def _is_dead(self, rank: Rank) -> bool:
        pid, status = os.waitpid(rank.pid, os.WNOHANG)
        if pid == 0:
            return False
        rank.exit_code = os.waitstatus_to_exitcode(status)
        rank.ended_at = time.time()
        return True

    def _end_others(self, by: str) -> None:
        """SIGTERM to every live rank, once; the grace period, then SIGKILL."""
        if self.ended_by == "itself":
            self.ended_by = by
        if self.kill_at is not None:
            return
        for rank in self.ranks:
            if rank.exit_code is None:
                rank.is_ended_by_us()
                process.send(rank.pid, signal.SIGTERM)
        grace = self.spec.grace_seconds
        self.kill_at = time.monotonic() + (min(grace, FAILURE_GRACE_SECONDS) if by == "failure" else grace)

    def _kill_all(self) -> None:
        self.kill_at = None
        for rank in self.ranks:
            if rank.exit_code is None:
                rank.is_ended_by_us()
                process.send_group(rank.pid, signal.SIGKILL)

    def failures(self) -> list[RankFailure]:
        """How its ranks have failed, those that have not succeeded."""
        known = {found.rank for found in self.own_failures}
        failed = [rank for rank in self.ranks if rank.outcome() != 0 and rank.number not in known]
        return [*self.own_failures, *map(self._failure, failed)]

    def _failure(self, rank: Rank) -> RankFailure:
        failed_at = rank.failed_at()
        tail, trace_at = with_error_file(rank.capture.tail), failed_at or rank.capture.traceback_at
        return failure(
            rank.number, rank.outcome(), rank.ended_at, tail, trace_at, ended_by_us=rank.ended_by_us,
            marked=failed_at is not None,
        )  # fmt: skip

    def _warn(self, message: str, dropped: Dropped | None = None) -> None:
        self.events.add(NodeWarning(time.time(), message, dropped=dropped))

    def _report_checkpoint(self, rank: int, found: Mapping[str, Any]) -> None:
        """Report a rank's checkpoint, unless what the rank printed is no report of one."""
        with contextlib.suppress(ShapeError):
            self.events.add(CheckpointReported.from_json({"at": time.time(), "rank": rank, **found}))

    def _write_end(self) -> None:
        """Wait until the end is written, or the run would be taken for lost; unless the node must end at once."""
        give_up = time.monotonic() + FULL_DISK_PATIENCE_SECONDS
        while self.events.is_held_up and time.monotonic() < give_up:
            if select.select([self.signals], [], [], 0.5)[0] and STOP_NOW_SIGNAL in os.read(self.signals, 4096):
                return
            self.events.write()


def failure(
    rank: int, exit_code: int, at: float, tail: str, traceback_at: float | None = None, *, ended_by_us: bool = False,
    marked: bool = False, of_launcher: bool = False,
) -> RankFailure:  # fmt: skip
    """How a rank failed, with the last 16 KiB of its output."""
    return RankFailure(
        rank, exit_code, at, tail[-TAIL_CHARS:], traceback_at, ended_by_us, marked, of_launcher=of_launcher
    )
