"""Runs one node of one attempt: starts its ranks, forwards output and signals, and reports how the ranks ended.

Reports are JSON lines in the node's events file; `protocol.py` defines the kinds of events.
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
from windlass.worker.byte_budget import ByteBudget
from windlass.worker.capture import Capture, Echo
from windlass.worker.event_log import EventLog
from windlass.worker.heartbeat import Heartbeat
from windlass.worker.host_facts import HostFacts
from windlass.worker.masking import secret_values
from windlass.worker.output_events import OutputEvents
from windlass.worker.output_pipes import OutputPipes
from windlass.worker.protocol import (
    FAILURE_GRACE_SECONDS,
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
)
from windlass.worker.rank import DONE_VARIABLE
from windlass.worker.rank_activity import Activity, activity_of
from windlass.worker.rank_start import Start
from windlass.worker.ranks import Rank, Ranks
from windlass.worker.rendezvous_check import ALONE, RendezvousCheck
from windlass.worker.reserve import Reserve
from windlass.worker.setup_step import SetupStep
from windlass.worker.stack_dump import ask_after_failure, flights_of, forget, ignores, reports_timeout, take_stacks

if TYPE_CHECKING:
    from windlass.worker.statusserver import StatusServer

ROUND_SECONDS = 0.004
"""Pause between two reads of output: lines that arrive during the pause share one index record and one wake-up."""
MAX_ROUND_SECONDS = 600.0
FULL_DISK_PATIENCE_SECONDS = 600.0
RESERVE_BYTES_PER_RANK = 32 << 10
"""Disk space reserved for a rank's last events; a failure contains the last 16 KiB of the rank's output."""
MAX_RESERVE_BYTES = 1 << 20
MARK_SECONDS = 0.25
"""Seconds between two checks whether live ranks have marked a failure; a failed rank may hang in its exit handlers."""
EXIT_SECONDS = 3.0
"""Seconds that a rank may take to exit after it has marked its failure; then the other ranks are ended."""
FIRST_CHECK_SECONDS = FAILURE_GRACE_SECONDS - 1.0
"""Seconds from SIGTERM to the check which ranks still work; early enough for the supervisor to use the result."""
CHECK_SECONDS = 1.0
STATUS_URL = "KUBEFLOW_TRAINER_SERVER_URL"


class Node:
    """Runs the ranks of one node until all have ended."""

    def __init__(
        self,
        spec: NodeSpec,
        wake: int | None,
        start: Start,
        echo: Echo | None = None,
        budget: ByteBudget | None = None,
    ) -> None:
        """`wake` is a descriptor that gets a byte at each event. `echo` receives all output of nodes whose files no
        process reads. During a pause of `budget`, the node does not read the output of live ranks.
        """
        self.spec = spec
        self.start = start
        self.secrets = secret_values({**os.environ, **spec.env})
        """Values that are masked in printed output."""
        size = min(MAX_RESERVE_BYTES, RESERVE_BYTES_PER_RANK * (1 + len(spec.ranks)))
        self.reserve = Reserve(spec.path("reserve"), size, is_shared=False)
        self.events = EventLog(spec.path("events"), self.reserve, wake, echo)
        self.selector = selectors.DefaultSelector()
        self.pipes = OutputPipes(self.selector, echo, budget)
        self.ranks = Ranks(spec.grace_seconds)
        self.output = OutputEvents(spec, self.events, self.ranks, are_logs_read=echo is None)
        self.status_server: StatusServer | None = None
        self.rendezvous_check = RendezvousCheck(spec.world_size)
        self.marks_at = 0.0
        """Monotonic time of the next search for failure marks."""
        self.check_at = 0.0
        """Monotonic time of the next check which ranks still work."""
        self.activity = Activity((), ())
        """Which ranks worked and which waited at the last check."""
        self.host_facts = HostFacts()
        self.heartbeat: Heartbeat | None = None
        self._helpers: set[int] = set()
        """Ids of processes that no rank has started: the poller of preemption notices, and processes of the setup
        script."""
        self._began = time.time(), time.monotonic()
        """Unix seconds and monotonic seconds at the start of the node."""
        self.own_failures: list[RankFailure] = []
        """Failures of ranks that could not be started, and of an external launcher."""

    # -- life ---------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Starts the ranks and observes them until all have ended. Returns 0 if all succeeded."""
        process.adopt_orphans()
        if not self.reserve.make():
            self.reserve.make(margin_bytes=0)
        self._handle_signals()
        me = process.stat(os.getpid())
        ticks = me.start_ticks if me else 0
        self.events.add(NodeStarted(time.time(), os.getpid(), ticks, process.boot_id(), self.start.name))
        for found in self.spec.found:
            self.output.report_checkpoint(self.spec.ranks[0].rank, found)
        # Polling for preemption notices starts after the ranks, so as not to delay them, with two exceptions: a network
        # namespace has no route to the metadata service, and a setup script may take minutes.
        watch_first = self.spec.network is not None or bool(self.spec.setup)
        if watch_first:
            self._watch_for_notices()
        if self._prepare():
            self._start_ranks()
            self.output.read_files(self.selector)
        if not watch_first:
            self._watch_for_notices()
        while self._is_live():
            self._round()
        return self._finish()

    def _prepare(self) -> bool:
        """Enters the node's network namespace and runs the job's setup script, if any. Returns whether ranks
        can start.
        """
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
        """Reports the results after all ranks have ended. Returns 0 if all succeeded."""
        self.output.warnings.ended(self.ranks, self._helpers)
        process.end_descendants()
        if self.status_server is not None:
            self.status_server.close()
        if self.heartbeat is not None:
            self.heartbeat.close()
        self._drain_to_the_end()
        self.output.report_progress(at_once=True)
        self.output.report_metrics(at_end=True)
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
        """Copies result files of a script from the code folder to the outputs, and reports which files were
        not copied.
        """
        if (request := self.spec.collect) is None:
            return None
        # imported late, to not delay the report of a failure
        from windlass.worker.collect import Collection, step_of_clock

        def is_stop_requested() -> bool:
            return self._is_stop_requested(0.0)

        env = {**os.environ, **self.spec.env}
        request = request.replace(since=request.since or self.spec.since)
        step = step_of_clock(self._began, (time.time(), time.monotonic()))
        found = Collection(request, self.spec.cwd, env["WINDLASS_OUTPUT_DIR"], env, step)
        try:
            if request.patterns:
                self.events.add(CollectionBegan(time.time(), 0, 0))  # searching for files may take long
            if wanted := found.wanted(is_stop_requested):
                self.events.add(CollectionBegan(time.time(), len(wanted), sum(one.status.st_size for one in wanted)))
                cleanup.add(self.spec.path("leftovers"), {glob.escape(found.partial(self.spec.node))})
                is_first = self.spec.ranks[0].rank == 0
                found.copy(
                    wanted,
                    node=self.spec.node,
                    began=self._began[0] + step if self.spec.attempt > 1 else 0.0,
                    is_first=is_first,
                    is_stop_requested=is_stop_requested,
                )
            report = found.report(time.time(), is_success=is_success)
        # Deeply nested folders, for example, raise RecursionError, which must not fail the run.
        except (OSError, ValueError, RuntimeError) as error:
            report = CodeFiles(time.time(), self.spec.cwd, problems=(f"{type(error).__name__}: {error}",))
        self.events.add(report)
        return report

    def _is_stop_requested(self, seconds: float) -> bool:
        """Whether a stop without a grace period was requested; waits for the request for at most `seconds`."""
        has_signals = select.select([self.signals], [], [], seconds)[0]
        return bool(has_signals) and STOP_NOW_SIGNAL in os.read(self.signals, 4096)

    def _kept_outputs(self) -> int:
        """Returns the bytes of outputs that the pod keeps for the supervisor; 0 if there are none. If there are too
        many, warns and returns 0.
        """
        if not (most := self.spec.outputs_max):
            return 0
        found = output_size.measure(self.spec.env["WINDLASS_OUTPUT_DIR"])
        if found.is_within(most):
            return max(1, found.bytes)
        if found.files:
            self._warn(
                f"node {self.spec.node}: its outputs are deleted with its pod: {found.bytes:,} bytes in "
                f"{found.files:,} files, and at most {most:,} in {output_size.MAX_FILES:,} are fetched; set "
                "kubernetes.outputs_max, or keep them in a claim: kubernetes: {results: {size: 20GiB}}",
                code=OUTPUTS_INCOMPLETE,
            )
        return 0

    def _write_end(self) -> None:
        """Waits until the end event is written or an immediate stop is requested. A run without end event counts as
        lost.
        """
        give_up = time.monotonic() + FULL_DISK_PATIENCE_SECONDS
        while self.events.is_blocked and time.monotonic() < give_up:
            if self._is_stop_requested(0.5):
                return
            self.events.write()

    # -- starts -------------------------------------------------------------------------------------------------------

    def _start_ranks(self) -> None:
        """Starts all ranks in order, and stops at the first that cannot be started."""
        for spec in self.spec.ranks:
            if not self._start_rank(spec):
                return

    def _start_rank(self, spec: RankSpec, environ: Mapping[str, str] = os.environ, beside: int = 0) -> bool:
        """Starts one rank, or reports why it could not be started. Returns whether the rank was started.

        The rank inherits `environ` from the node or an external launcher. It joins the network namespace of process
        `beside`; 0 for the node's own.
        """
        number = spec.rank
        done = os.path.join(self.spec.folder, f"rank-{number}.done")
        env = {**environ, **self.spec.env, **spec.env, DONE_VARIABLE: done}
        env.update({**self._status_environment(number, env), **devices.of_jax(env)})
        read, write = os.pipe()
        try:
            pid = self.start(list(spec.argv), self.spec.cwd, env, write, beside)
            capture = Capture(
                read, self.spec.folder, number, self.spec.progress, self.pipes.echo, self.reserve, self.secrets
            )
        except OSError as error:
            os.close(read)
            self._fail_to_start(number, error, spec.argv[0])
            return False
        finally:
            os.close(write)
        rank = Rank(number, pid, capture, done)
        self.ranks.append(rank)
        self.pipes.watch(read, rank)
        self.events.add(RankChanged(time.time(), number, pid=pid))
        return True

    def _status_environment(self, rank: int, env: Mapping[str, str]) -> dict[str, str]:
        """Returns the variables with which this rank can post its progress; empty if the spec does not include them."""
        if STATUS_URL not in self.spec.known_at_start:
            return {}
        if self.status_server is None:
            from windlass.worker.statusserver import StatusServer  # imported here because only Python scripts need it

            try:
                self.status_server = StatusServer(self.selector, self.spec.path("token"), self._take_post)
            except OSError:
                return {}  # without the server, progress is only read from the output
        return self.status_server.environment(rank, env)

    def _take_post(self, number: int, progress: dict[str, Any]) -> None:
        for rank in self.ranks:
            if rank.number == number:
                rank.capture.report(progress)

    def _watch_for_notices(self) -> None:
        """Starts the process that polls the machine's metadata service for preemption notices, if the spec requests
        polling.
        """
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
            popen.returncode = 0  # Popen must not reap the process, which ends with the node
            self.selector.register(read, selectors.EVENT_READ, lambda: self._take_notices(read))
        except OSError as error:
            os.close(read)
            self._warn(f"preemption notices of this machine are not polled: {error.strerror or error}")
        finally:
            os.close(write)

    def _take_notices(self, source: int) -> None:
        """Reports the notices that the polling process has written, one per line."""
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
        """Handles the next output, signal, exited rank or due time; then pauses so that output gathers."""
        has_output = self.wait(min([MAX_ROUND_SECONDS, *self._due()]))
        self._reap()
        self._read_marks()
        if self.ranks.kill_at is not None and time.monotonic() >= self.ranks.kill_at:
            self._end_grace()
        self._check_activity()
        self.output.report_progress()
        self.output.report_metrics()
        self._check_rendezvous()
        if has_output:
            time.sleep(ROUND_SECONDS)

    def wait(self, seconds: float) -> bool:
        """Waits at most `seconds` for output, a signal or a heartbeat, and handles it. Returns whether ranks wrote
        output.
        """
        ready = self.selector.select(max(0.0, min(seconds, self.pipes.pause())))
        now_ns = time.time_ns()
        ranks = [key.data for key, _ in ready if isinstance(key.data, Rank)]
        most = self.pipes.share(len(ranks))
        for rank in ranks:
            self._drain(rank, now_ns, most)
        for key, _ in ready:
            if not isinstance(key.data, Rank):
                key.data()
        self._beat()
        self.events.write()
        return bool(ranks)

    def _due(self) -> list[float]:
        """Returns the seconds until each due time, such as the end of the grace period, a heartbeat or a check."""
        now = time.monotonic()
        due = [self.output.progress_due(), self.output.metrics_due()]
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
        """Sends and receives heartbeats, and reports the nodes whose heartbeats do not arrive."""
        if self.heartbeat is not None and self.heartbeat.turn():
            self.events.add(PeersUnreachable(time.time(), self.heartbeat.silent))

    def _check_rendezvous(self) -> None:
        """Reports, at most once, that the ranks make progress but never connected to each other."""
        own = (self.status_server.port,) if self.status_server is not None else ()
        if self.output.progress and self.rendezvous_check.finds_alone(self.ranks, own):
            self.events.add(RanksAlone(time.time(), tuple(rank.number for rank in self.ranks)))

    def _drain(self, rank: Rank, now_ns: int, most: int | None = None) -> None:
        self.pipes.drain(rank.capture, now_ns, most)
        self.output.take(rank)

    def _drain_to_the_end(self) -> None:
        """Reads the rest of the pipes after all ranks have ended."""
        for rank in self.ranks:
            self._drain(rank, time.time_ns())
            self.output.take(rank, at_end=True)
            self.pipes.forget(rank.capture.source)
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
        """Handles the signals that have arrived. A stop signal ends the ranks, or the setup script if it is running."""
        numbers = os.read(self.signals, 4096)
        if STACKS_SIGNAL in numbers:
            self._dump_stacks()
        if STOP_NOW_SIGNAL in numbers:
            self.ranks.ended_by = "stop"
            self._kill_all()
        elif any(number in numbers for number in STOP_SIGNALS):
            if not self.ranks.are_ending:  # may be a node shutdown; the supervisor recognises its own SIGTERM
                now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                self.events.add(PreemptionNotice(time.time(), "sigterm", "terminate", time=now))
            self.ranks.end(by="stop")

    def _kill_all(self) -> None:
        self.ranks.kill()

    def _check_activity(self) -> None:
        """Reports which ranks still save or do other work while they are being ended.

        `FAILURE_GRACE_SECONDS` after a failure, ranks that are not working are killed: by this node if one of its ranks
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
        """Kills the ranks that outlived their grace period, and reports those that did not wait for others."""
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
        """Collects the stacks of the live ranks. Text printed by the dump does not count as output of the script."""
        before = {rank: rank.capture.has_output for rank in self.ranks.live}
        found = take_stacks(list(before), lambda rank: rank.capture.drain(time.time_ns(), self.pipes.share(1)))
        for rank, had_output in before.items():
            rank.capture.has_output = had_output
        if found:
            self.events.add(StacksTaken(time.time(), found))

    # -- failures -----------------------------------------------------------------------------------------------------

    def fail(self, found: RankFailure) -> None:
        """Reports a failure for which no started rank is responsible, and ends the ranks."""
        self.own_failures.append(found)
        self.events.add(RankFailing(time.time(), found.rank))  # ranks of other nodes may wait for this rank
        self.ranks.end(by="failure")

    def _fail_to_start(self, rank: int, error: OSError, *program: str) -> None:
        reason = ", ".join([*program, str(error.strerror or error)])
        self.fail(RankFailure(rank, 127, time.time(), f"could not start: {reason}"))

    def _reap(self) -> None:
        """Reaps ended ranks and adopted orphans. The first failure ends the other ranks."""
        dead = [rank for rank in self.ranks.live if rank.reap()]
        for rank in dead:
            if rank.outcome() == 0 and not self.ranks.are_ending:
                self.output.warnings.outlived(rank)
            elif not self.ranks.are_ending:
                self._drain(rank, time.time_ns())
                self._see_listeners(rank)
            process.send_group(rank.pid, signal.SIGKILL)  # kills the processes that the rank has started
            self._drain(rank, time.time_ns())
            self.events.add(RankChanged(time.time(), rank.number, exit_code=rank.outcome()))
        failed = [rank for rank in dead if rank.outcome() != 0]
        if failed:
            self.output.report_metrics(at_once=True)
        if failed and not self.ranks.are_ending:
            self._fail_by(failed[0])
        process.reap_orphans(self._children())

    def _children(self) -> set[int]:
        """Returns the ids of child processes that `process.reap_orphans` must not reap."""
        return {rank.pid for rank in self.ranks}

    def _read_marks(self) -> None:
        """Treats a rank as failed if it has marked its failure but does not exit in time.

        Exit handlers may wait for the other ranks, which wait for the failed rank: the shutdown barrier of JAX does so
        for five minutes. A rank without peers gets the job's whole grace period for its exit handlers.
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
        self.host_facts.record_listeners(failed.capture.tail, {rank.pid for rank in self.ranks})

    def _fail_by(self, failed: Rank) -> None:
        """Handles the first failed rank of this node: collects evidence, reports the failure, and ends the
        other ranks.
        """
        self._see_listeners(failed)
        self.host_facts.record_failure(failed.capture.tail, self.spec.cwd)
        waited = reports_timeout(failed.capture.tail)
        if waited:
            self._dump_stacks()
        else:
            ask_after_failure(failed, [rank for rank in self.ranks.live if rank is not failed])
        self.events.add(RankFailing(time.time(), failed.number, waited))
        self.ranks.end(by="failure")

    def failures(self) -> list[RankFailure]:
        """Returns the failures of all ranks that have not succeeded."""
        known = {found.rank for found in self.own_failures}
        failed = [rank for rank in self.ranks if rank.outcome() != 0 and rank.number not in known]
        return [*self.own_failures, *(rank.failure() for rank in failed)]

    def _report_of_host(self) -> HostReport:
        output, saves = (self.spec.env.get(f"WINDLASS_{name}_DIR", "") for name in ("OUTPUT", "CHECKPOINT"))
        return self.host_facts.report(
            [rank.pid for rank in self.ranks],
            list(filter(None, [output, self.spec.folder, self.spec.cwd, os.environ.get("TMPDIR", "/tmp")])),
            list(filter(None, [saves, output, self.spec.cwd])),
            self.spec.reserved_port,
        )

    def _warn(self, message: str, code: str | None = None) -> None:
        self.events.add(NodeWarning(time.time(), message, code=code))
