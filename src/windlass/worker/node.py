"""One node of one attempt: starts the ranks of a node spec, forwards their output and signals, reports how each ended.

What it reports goes as JSON lines into its events file; `protocol.py` has the kinds of events.
"""

from __future__ import annotations

import glob
import json
import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from windlass.worker import cleanup, devices, netns, output_size, process
from windlass.worker.capture import Capture, Echo
from windlass.worker.event_log import EventLog
from windlass.worker.heartbeat import Heartbeat
from windlass.worker.host_facts import HostFacts
from windlass.worker.masking import secret_values
from windlass.worker.output_events import OutputEvents
from windlass.worker.protocol import (
    GRACE_OVER,
    MORE_GRACE,
    OUTPUTS_INCOMPLETE,
    STACKS_SIGNAL,
    STOP_NOW_SIGNAL,
    STOP_SIGNALS,
    CodeFiles,
    CollectionBegan,
    HostReport,
    NodeEnded,
    NodeSpec,
    NodeStarted,
    NodeWarning,
    PeersUnreachable,
    PreemptionNotice,
    RankChanged,
    RankFailing,
    RankFailure,
    RanksAlone,
    RanksAtWork,
    RankSpec,
    StacksTaken,
    read_spec,
)
from windlass.worker.rank import DONE_VARIABLE
from windlass.worker.rank_activity import Activity, activity_of
from windlass.worker.rank_start import Start
from windlass.worker.ranks import FAILURE_GRACE_SECONDS, Rank, Ranks
from windlass.worker.rendezvous_check import ALONE, RendezvousCheck
from windlass.worker.reserve import Reserve
from windlass.worker.setup_step import SetupStep
from windlass.worker.stack_dump import ask_after_failure, flights_of, forget, ignores, take_stacks, waited_in_vain

if TYPE_CHECKING:
    from windlass.worker.statusserver import StatusServer

ROUND_SECONDS = 0.004
"""Pause between rounds of reading: lines that arrive within it share one index record and one wake-up."""
MAX_ROUND_SECONDS = 600.0
FULL_DISK_PATIENCE_SECONDS = 600.0
RESERVE_BYTES_PER_RANK = 32 << 10
"""Kept back for the node's last events: a failure is reported with the last 16 KiB of the rank's output."""
MAX_RESERVE_BYTES = 1 << 20
MARK_SECONDS = 0.25
"""How often the marks of live ranks are read: one that has failed may hang in its exit handlers."""
EXIT_SECONDS = 3.0
"""How long a rank that has marked its failure may take to exit before the other ranks are ended."""
FIRST_CHECK_SECONDS = FAILURE_GRACE_SECONDS - 1.0
"""From SIGTERM until the node looks which ranks work: a supervisor that ends it after a failure knows it in time."""
CHECK_SECONDS = 1.0
STATUS_URL = "KUBEFLOW_TRAINER_SERVER_URL"


class Node:
    """Runs the ranks of one node until all have ended."""

    def __init__(self, spec: NodeSpec, wake: int | None, start: Start, echo: Echo | None = None) -> None:
        """`wake` gets a byte at each event; `echo` all that is written to files, where no other process reads these."""
        self.spec = spec
        self.start = start
        self.echo = echo
        self.secrets = secret_values({**os.environ, **spec.env})
        """Values that are masked in what is printed."""
        size = min(MAX_RESERVE_BYTES, RESERVE_BYTES_PER_RANK * (1 + len(spec.ranks)))
        self.reserve = Reserve(spec.path("reserve"), size, is_shared=False)
        self.events = EventLog(spec.path("events"), self.reserve, wake, echo)
        self.selector = selectors.DefaultSelector()
        self.ranks = Ranks(spec.grace_seconds)
        self.output = OutputEvents(spec, self.events, self.ranks, are_logs_read=echo is None)
        self.status_server: StatusServer | None = None
        self.rendezvous_check = RendezvousCheck(spec.world_size)
        self.marks_at = 0.0
        """When to read the ranks' marks next, by the monotonic clock."""
        self.check_at = 0.0
        """When to check next which ranks work, by the monotonic clock."""
        self.activity = Activity((), ())
        """Which ranks worked and which waited at the last check."""
        self.host_facts = HostFacts()
        self.heartbeat: Heartbeat | None = None
        self._helpers: set[int] = set()
        """Processes that no rank has started: what polls for notices, and what the setup script has left."""
        self._began = time.time() if spec.attempt > 1 else 0.0
        """Of files in the output, what is older is of an earlier attempt."""
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
            self.output.report_checkpoint(self.spec.ranks[0].rank, found)
        # It delays the start of ranks; but a network namespace has no route to the metadata, and a setup script may
        # take minutes.
        watch_first = self.spec.network is not None or bool(self.spec.setup)
        if watch_first:
            self._watch_for_notices()
        if self._prepare():
            self._start_ranks()
        if not watch_first:
            self._watch_for_notices()
        while self._is_live():
            self._round()
        return self._finish()

    def _prepare(self) -> bool:
        """Enter the node's network and run the job's setup script, if there are any; gives whether ranks can start."""
        try:
            if self.spec.network is not None:
                netns.enter(self.spec.network, self.spec.folder)
            if self.spec.heartbeat is not None:
                self.heartbeat = Heartbeat(self.spec.heartbeat)
                self.selector.register(self.heartbeat.socket, selectors.EVENT_READ, self._beat)
            is_done = not self.spec.setup or SetupStep(self).run()
            self._helpers.update(process.children(os.getpid()) if self.spec.setup else ())
            return is_done
        except OSError as error:
            self._fail_to_start(self.spec.ranks[0].rank, error)
            return False

    def _finish(self) -> int:
        """All ranks have ended: report what is left, and how; 0 if all succeeded."""
        self.output.warnings.ended(self.ranks, self._helpers)
        process.end_descendants()
        if self.status_server is not None:
            self.status_server.close()
        if self.heartbeat is not None:
            self.heartbeat.close()
        self._drain_to_the_end()
        self.output.report_progress(at_once=True)
        failures = self.failures()
        found = self._collect(is_success=not failures)
        self.output.report_nothing_saved(found.save.path if found is not None and found.save is not None else "")
        host, flights = (self._report_of_host(), flights_of(self.ranks)) if failures else (None, {})
        alone = tuple(rank.number for rank in self.ranks if os.path.exists(rank.base + ALONE))
        outputs = self._kept_outputs()
        self.events.add(NodeEnded(time.time(), tuple(failures), self.ranks.ended_by, host, flights, alone, outputs))
        self._write_end()
        self.reserve.release()
        return 1 if failures else 0

    def _collect(self, *, is_success: bool) -> CodeFiles | None:
        """Copy the results of an unchanged script to the output, and report those that stay where they are."""
        if (request := self.spec.collect) is None:
            return None
        from windlass.worker.collect import Collection  # failures are reported without waiting for this import

        def is_to_stop() -> bool:
            return self._is_to_end_now(0.0)

        env = {**os.environ, **self.spec.env}
        request = request.replace(since=request.since or self.spec.since)
        found = Collection(request, self.spec.cwd, env["WINDLASS_OUTPUT_DIR"], env)
        try:
            if request.patterns:
                self.events.add(CollectionBegan(time.time(), 0, 0))  # to look for them may take long, too
            if wanted := found.wanted(is_to_stop):
                self.events.add(CollectionBegan(time.time(), len(wanted), sum(one.status.st_size for one in wanted)))
                cleanup.add(self.spec.path("leftovers"), {glob.escape(found.partial(self.spec.node))})
                is_first = self.spec.ranks[0].rank == 0
                found.copy(wanted, node=self.spec.node, began=self._began, is_first=is_first, is_to_stop=is_to_stop)
            report = found.report(time.time(), is_success=is_success)
        except (OSError, ValueError, RuntimeError) as error:  # such as folders too deep: the run is not lost for it
            report = CodeFiles(time.time(), self.spec.cwd, problems=(f"{type(error).__name__}: {error}",))
        self.events.add(report)
        return report

    def _is_to_end_now(self, seconds: float) -> bool:
        """Whether a stop without grace is requested; waits for the request at most so long."""
        has_signals = select.select([self.signals], [], [], seconds)[0]
        return bool(has_signals) and STOP_NOW_SIGNAL in os.read(self.signals, 4096)

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
                "kubernetes.outputs_max, or keep them in a claim: kubernetes: {results: {size: 20GiB}}",
                code=OUTPUTS_INCOMPLETE,
            )
        return 0

    def _write_end(self) -> None:
        """Wait until the end is written, or the run would be taken for lost; unless the node must end at once."""
        give_up = time.monotonic() + FULL_DISK_PATIENCE_SECONDS
        while self.events.is_held_up and time.monotonic() < give_up:
            if self._is_to_end_now(0.5):
                return
            self.events.write()

    # -- starts -------------------------------------------------------------------------------------------------------

    def _start_ranks(self) -> None:
        """Start all ranks, up to the first that cannot be started."""
        for spec in self.spec.ranks:
            if not self._start_rank(spec):
                return

    def _start_rank(self, spec: RankSpec, environ: Mapping[str, str] = os.environ, beside: int = 0) -> bool:
        """Start one rank, or report that it could not be started; gives whether it was.

        `environ` is what it inherits from the node or an external launcher; `beside` is the process whose network it
        shares, where that is not the node's own.
        """
        number = spec.rank
        done = os.path.join(self.spec.folder, f"rank-{number}.done")
        env = {**environ, **self.spec.env, **spec.env, DONE_VARIABLE: done}
        env.update({**self._status_environment(number, env), **devices.of_jax(env)})
        read, write = os.pipe()
        try:
            pid = self.start(list(spec.argv), self.spec.cwd, env, write, beside)
            capture = Capture(read, self.spec.folder, number, self.spec.progress, self.echo, self.reserve, self.secrets)
        except OSError as error:
            os.close(read)
            self._fail_to_start(number, error, spec.argv[0])
            return False
        finally:
            os.close(write)
        rank = Rank(number, pid, capture, done)
        self.ranks.append(rank)
        self.selector.register(read, selectors.EVENT_READ, rank)
        self.events.add(RankChanged(time.time(), number, pid=pid))
        return True

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

    def _watch_for_notices(self) -> None:
        """Start the process that polls this machine's metadata for preemption notices, if the spec has them."""
        if self.spec.notices is None:
            return
        read, write = os.pipe()
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "preemption_notice.py")
        try:
            popen = subprocess.Popen(
                [self.spec.worker_python, "-I", "-S", script, json.dumps(self.spec.notices.to_json())],
                stdin=subprocess.DEVNULL,
                stdout=write,
                preexec_fn=process.Birth(),
            )
            self._helpers.add(popen.pid)
            popen.returncode = 0  # it ends with the node, and is collected by its pid
            self.selector.register(read, selectors.EVENT_READ, lambda: self._take_notices(read))
        except OSError as error:
            os.close(read)
            self._warn(f"preemption notices of this machine are not polled: {error.strerror or error}")
        finally:
            os.close(write)

    def _take_notices(self, source: int) -> None:
        """Report what the polling process has written: a line at a time, each in one piece."""
        data = os.read(source, 65536)
        if not data:
            self.selector.unregister(source)
            os.close(source)
        for line in data.splitlines():
            self.events.add(PreemptionNotice(time.time(), **json.loads(line)))

    # -- rounds -------------------------------------------------------------------------------------------------------

    def _is_live(self) -> bool:
        return bool(self.ranks.live)

    def _round(self) -> None:
        """Wait for output, a signal, a death or a moment that is due; take all there is; then let more gather."""
        has_output = self.wait(min([MAX_ROUND_SECONDS, *self._due()]))
        self._reap()
        self._read_marks()
        if self.ranks.kill_at is not None and time.monotonic() >= self.ranks.kill_at:
            self._end_grace()
        self._check_activity()
        self.output.report_progress()
        self._check_rendezvous()
        if has_output:
            time.sleep(ROUND_SECONDS)

    def wait(self, seconds: float) -> bool:
        """Wait for output, a signal or a beat, at most so long, and take what there is; gives whether ranks wrote."""
        ready = self.selector.select(max(0.0, seconds))
        now_ns = time.time_ns()
        for key, _ in ready:
            if isinstance(key.data, Rank):
                self._drain(key.data, now_ns)
            else:
                key.data()
        self._beat()
        self.events.write()
        return any(isinstance(key.data, Rank) for key, _ in ready)

    def _due(self) -> list[float]:
        """Seconds until the grace period ends, held-back progress is due, and the like."""
        now = time.monotonic()
        due = [self.output.progress_due()]
        if self.ranks.kill_at is not None:
            due.append(self.ranks.kill_at - now)
        if self.events.is_waiting:
            due.append(1.0)
        if self.heartbeat is not None:
            due.append(self.heartbeat.due())
        if not self.ranks.are_ending and self.ranks.live:
            due.append(self.marks_at - now)
        if self.ranks.ended_at is not None and self.ranks.kill_at is not None:
            due.append(max(self.check_at, self.ranks.ended_at + FIRST_CHECK_SECONDS) - now)
        return due

    def _beat(self) -> None:
        """Send and read heartbeats, and report which nodes are silent."""
        if self.heartbeat is not None and self.heartbeat.turn():
            self.events.add(PeersUnreachable(time.time(), self.heartbeat.silent))

    def _check_rendezvous(self) -> None:
        """Report, once, that the ranks make progress and have never met."""
        own = (self.status_server.port,) if self.status_server is not None else ()
        if self.output.progress and self.rendezvous_check.finds_alone(self.ranks, own):
            self.events.add(RanksAlone(time.time(), tuple(rank.number for rank in self.ranks)))

    def drain_pipe(self, capture: Capture, now_ns: int) -> None:
        """Take what a pipe holds, and leave it alone once its writers have closed it."""
        if capture.source in self.selector.get_map() and not capture.drain(now_ns):
            self.selector.unregister(capture.source)

    def _drain(self, rank: Rank, now_ns: int) -> None:
        self.drain_pipe(rank.capture, now_ns)
        self.output.take(rank)

    def _drain_to_the_end(self) -> None:
        """All ranks have ended: read the rest of their pipes."""
        for rank in self.ranks:
            self._drain(rank, time.time_ns())
            self.output.take(rank, at_end=True)
            rank.capture.close()
            forget(rank)

    # -- signals ------------------------------------------------------------------------------------------------------

    def _handle_signals(self) -> None:
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in (*STOP_SIGNALS, STOP_NOW_SIGNAL, STACKS_SIGNAL, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self.signals = read
        self.selector.register(read, selectors.EVENT_READ, self._take_signals)

    def _take_signals(self) -> None:
        """Act on the signals that have arrived: a stop ends the ranks, or what runs before them."""
        numbers = os.read(self.signals, 4096)
        if STACKS_SIGNAL in numbers:
            self._dump_stacks()
        if STOP_NOW_SIGNAL in numbers:
            self.ranks.ended_by = "stop"
            self._kill_all()
        elif any(number in numbers for number in STOP_SIGNALS):
            if not self.ranks.are_ending:  # the supervisor knows whether it sent this, or the machine shuts down
                now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                self.events.add(PreemptionNotice(time.time(), "sigterm", "terminate", time=now))
            self.ranks.end(by="stop")

    def _kill_all(self) -> None:
        self.ranks.kill()

    def _check_activity(self) -> None:
        """Report which ranks save, or do other work of their own, while they are being ended.

        After a failure the others are killed once `FAILURE_GRACE_SECONDS` are over: here, where a rank of this node has
        failed, else by the supervisor.
        """
        now, begun = time.monotonic(), self.ranks.ended_at
        if begun is None or self.ranks.kill_at is None or now < max(self.check_at, begun + FIRST_CHECK_SECONDS):
            return
        self.check_at = now + CHECK_SECONDS
        before = self.activity.working
        self.activity = activity_of([rank for rank in self.ranks.live if rank.failed_at() is None], self.spec)
        if self.activity.working != before:
            self.events.add(RanksAtWork(time.time(), tuple(rank.number for rank in self.activity.working)))
        if self.ranks.ended_by == "failure" and time.monotonic() - begun >= FAILURE_GRACE_SECONDS:
            self.ranks.kill_others(self.activity.working)

    def _end_grace(self) -> None:
        """Kill the ranks that have not exited since SIGTERM, and report which were still at work."""
        waiting = self.activity.waiting
        left = tuple(rank.number for rank in self.ranks.live if rank.failed_at() is None and rank not in waiting)
        ignored = all(ignores(rank.pid, signal.SIGTERM) for rank in self.ranks.live if rank.number in left)
        self._kill_all()
        if left:
            who, verb = (f"rank {left[0]}", "was") if len(left) == 1 else (f"ranks {', '.join(map(str, left))}", "were")
            message = f"{who} had not exited {self.ranks.grace_seconds:g} s after SIGTERM (grace), and {verb} killed"
            fix = MORE_GRACE
            if ignored:
                fix = "let the script exit on SIGTERM, which it ignores (SIG_IGN): more grace does not help"
            self.events.add(NodeWarning(time.time(), message, code=GRACE_OVER, fix=fix, ranks=left))

    def _dump_stacks(self) -> None:
        """Take the stacks of the live ranks. What they print then is no sign of life."""
        before = {rank: rank.capture.has_output for rank in self.ranks.live}
        found = take_stacks(list(before), lambda rank: rank.capture.drain(time.time_ns()))
        for rank, had_output in before.items():
            rank.capture.has_output = had_output
        if found:
            self.events.add(StacksTaken(time.time(), found))

    # -- failures -----------------------------------------------------------------------------------------------------

    def fail(self, found: RankFailure) -> None:
        """Report a failure that is not that of a started rank, and end the ranks."""
        self.own_failures.append(found)
        self.events.add(RankFailing(time.time(), found.rank))  # the ranks of the other nodes would wait for it
        self.ranks.end(by="failure")

    def _fail_to_start(self, rank: int, error: OSError, *program: str) -> None:
        reason = ", ".join([*program, str(error.strerror or error)])
        self.fail(RankFailure(rank, 127, time.time(), f"could not start: {reason}"))

    def _reap(self) -> None:
        """Reap ended ranks and adopted orphans. The first failure ends the other ranks."""
        dead = [rank for rank in self.ranks.live if rank.reap()]
        for rank in dead:
            if rank.outcome() == 0 and not self.ranks.are_ending:
                self.output.warnings.outlived(rank)
            elif not self.ranks.are_ending:
                self._drain(rank, time.time_ns())
                self._see_listeners(rank)
            process.send_group(rank.pid, signal.SIGKILL)  # what the rank has started ends with it
            self._drain(rank, time.time_ns())
            self.events.add(RankChanged(time.time(), rank.number, exit_code=rank.outcome()))
        failed = [rank for rank in dead if rank.outcome() != 0]
        if failed and not self.ranks.are_ending:
            self._fail_by(failed[0])
        process.reap_orphans(self._children())

    def _children(self) -> set[int]:
        """Pids of the processes that we wait for by name."""
        return {rank.pid for rank in self.ranks}

    def _read_marks(self) -> None:
        """A rank that has marked its failure and does not exit has failed all the same.

        Its exit handlers may wait for the other ranks (the shutdown barrier of JAX does so for five minutes), and these
        wait for it. A rank that is alone has the job's grace period for what it does on its way out.
        """
        now = time.monotonic()
        if self.ranks.are_ending or now < self.marks_at:
            return
        self.marks_at = now + MARK_SECONDS
        grace = self.spec.grace_seconds
        patience = min(grace, EXIT_SECONDS) if self.spec.world_size > 1 else grace
        for rank in self.ranks.live:
            failed_at = rank.failed_at()
            if failed_at is not None and time.time() - failed_at >= patience:
                self._warn(f"rank {rank.number} failed and has not exited for {patience:g} s: exit handlers run")
                self._drain(rank, time.time_ns())
                self._fail_by(rank)
                return

    def _see_listeners(self, failed: Rank) -> None:
        self.host_facts.see_listeners(failed.capture.tail, {rank.pid for rank in self.ranks})

    def _fail_by(self, failed: Rank) -> None:
        """The first rank of this node has failed: take what explains it, report it, and end the others."""
        self._see_listeners(failed)
        self.host_facts.see_failure(failed.capture.tail, self.spec.cwd)
        waited = waited_in_vain(failed.capture.tail)
        if waited:
            self._dump_stacks()
        else:
            ask_after_failure(failed, [rank for rank in self.ranks.live if rank is not failed])
        self.events.add(RankFailing(time.time(), failed.number, waited))
        self.ranks.end(by="failure")

    def failures(self) -> list[RankFailure]:
        """How its ranks have failed, those that have not succeeded."""
        known = {found.rank for found in self.own_failures}
        failed = [rank for rank in self.ranks if rank.outcome() != 0 and rank.number not in known]
        return [*self.own_failures, *(rank.failure() for rank in failed)]

    def _report_of_host(self) -> HostReport:
        output, saves = (self.spec.env.get(f"WINDLASS_{name}_DIR", "") for name in ("OUTPUT", "CHECKPOINT"))
        return self.host_facts.report(
            [rank.pid for rank in self.ranks],
            list(filter(None, [output, self.spec.folder, self.spec.cwd, os.environ.get("TMPDIR", "/tmp")])),
            list(filter(None, [saves, output, self.spec.cwd])),
            self.spec.held_port,
        )

    def _warn(self, message: str, code: str | None = None) -> None:
        self.events.add(NodeWarning(time.time(), message, code=code))


def run_node(path: str, wake: int | None, start: Start) -> int:
    """Run the node of the spec file at `path`, with or without an external launcher; 0 if all its ranks succeeded."""
    spec = read_spec(path)
    if spec.launch is not None:
        from windlass.worker.external_launcher import LaunchedNode  # only where mpirun or torchrun starts the ranks

        return LaunchedNode(spec, wake, start).run()
    return Node(spec, wake, start).run()
