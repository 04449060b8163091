"""One node of one attempt: starts the ranks of a node spec, carries their output and signals, and says how each ended.

What it sees goes as JSON lines into an events file. That file, not a connection, is how the node speaks: whoever
started it may die and another take over, and nothing is lost.

| event  | carries |
|---|---|
| `node` | pid, start_ticks, boot |
| `rank` | rank, pid — and once more with exit_code |
| `output` | the first output of the node |
| `progress` | the newest progress of the lowest reporting rank; samples_per_second is the sum over the node's ranks |
| `first-step` | rank, step, every: the first step that a rank reported, and how many steps to the next report |
| `checkpoint` | rank, action (`saved`, `restored`, `refused`, `missing` …), step, name and what else is known |
| `loss` | rank, loss, step: its loss is no longer finite; last: loss and step of the last one that was |
| `unreachable` | nodes: the other nodes that have not been heard for some seconds; again whenever that changes |
| `failing` | a rank failed, the others are being ended |
| `notice` | source (`imds`, `sigterm`), action, time: the machine is to go away, unless our keeper sent the signal |
| `warning` | message |
| `hang` | ranks: rank, state, stack, flight of each that lives (see watch.py); asked, or since one waited in vain |
| `alone` | ranks: all of the node, where each trains alone as far as it is seen (see meeting.py) |
| `end` | failures (for `blame`), ended_by (`itself`, `failure`, `stop`), alone, facts of the machine if ranks failed |
"""

from __future__ import annotations

import json
import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from windlass.worker import netns, process, resume
from windlass.worker.capture import Capture, Echo
from windlass.worker.evidence import Evidence
from windlass.worker.heartbeat import Heartbeat
from windlass.worker.listeners import IN_USE, listeners
from windlass.worker.meeting import ALONE, looks_alone
from windlass.worker.rank import DONE_VARIABLE
from windlass.worker.ranks import Rank
from windlass.worker.reserve import FULL_ERRORS, Reserve
from windlass.worker.start import Start
from windlass.worker.traces import with_error_file
from windlass.worker.watch import ask_after_failure, flights_of, forget, take_stacks, waited_in_vain

if TYPE_CHECKING:
    from windlass.worker.statusserver import StatusServer

ROUND_SECONDS = 0.004
"""Pause between rounds of reading: lines that arrive within it share one index record and one wake-up."""
PROGRESS_SECONDS = 0.2
FULL_DISK_PATIENCE_SECONDS = 600.0
RESERVE_BYTES_PER_RANK = 32 << 10
"""Kept back for the node's last events: a rank that fails is told of with the last 16 KiB of its output."""
MAX_RESERVE_BYTES = 1 << 20
URGENT = ("failing", "notice", "unreachable", "end")
"""Events that the reserve is released for: the supervisor acts on them."""
DROPPED_SECONDS = 30.0
"""How often it is said how much a log lacks, while that grows."""
FAILURE_GRACE_SECONDS = 3.0
"""What is left to ranks whose peer has failed: they cannot train on, and the next attempt waits for them."""
MARK_SECONDS = 0.25
"""How often the marks are read of ranks that live: one that has failed may hang in its exit handlers."""
MEETING_SECONDS = 15.0
"""After the first progress, and again so much later, it is looked whether the ranks have met."""
EXIT_SECONDS = 3.0
"""How long a rank that has marked its failure may take to exit before the other ranks are ended."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
STOP_NOW_SIGNAL = signal.SIGUSR1
LOOK_SIGNAL = signal.SIGUSR2
STATUS_URL = "KUBEFLOW_TRAINER_SERVER_URL"
NODE_TAG = "n"
"""Who says what is told of the node, where it is echoed; a rank's output is told as of its number."""


class Node:
    """Runs the ranks of one node until all have ended."""

    def __init__(self, spec: dict[str, Any], wake: int | None, start: Start, echo: Echo | None = None) -> None:
        """`wake` gets a byte at each event; `echo` all that is written to files, where nobody else can read these."""
        self.spec = spec
        self.wake = wake
        self.start = start
        self.echo = echo
        self.folder: str = spec["folder"]
        size = min(MAX_RESERVE_BYTES, RESERVE_BYTES_PER_RANK * (1 + len(spec["ranks"])))
        self.reserve = Reserve(os.path.join(self.folder, f"node-{spec['node']}.reserve"), size, is_shared=False)
        self.dropped_told: dict[int, tuple[float, int]] = {}
        """For each rank whose log lacks something: when that was last told, and how many bytes it lacked."""
        self.events = os.open(spec["events"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.selector = selectors.DefaultSelector()
        self.ranks: list[Rank] = []
        self.unwritten: list[bytes] = []
        self.is_urgent = False
        """Whether an event among them is not to wait until the disk has room."""
        self.spoke = False
        self.first_step_of: int | None = None
        """The rank whose first step was told: one rank's is enough, as for progress."""
        self.progress_at = 0.0
        self.progress_sent: dict[str, object] = {}
        self.ended_by = "itself"
        self.kill_at: float | None = None
        self.status_server: StatusServer | None = None
        self.meeting_at: float | None = None
        """When it is looked next whether the ranks have met; 0 once that is settled."""
        self.looks = 0
        self.marks_at = 0.0
        """When to read the ranks' marks next, by the monotonic clock."""
        self.evidence = Evidence()
        self.listeners: list[dict[str, Any]] = []
        """Who listened on which port when a rank found its port in use."""
        self.heartbeat: Heartbeat | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Start, watch and end the ranks; 0 if all succeeded."""
        process.adopt_orphans()
        if not self.reserve.make():
            self.reserve.make(margin_bytes=0)
        self._hear_signals()
        me = process.stat(os.getpid())
        who = {"pid": os.getpid(), "start_ticks": me.start_ticks if me else 0, "boot": process.boot_id()}
        self._say("node", start=self.start.name, **who)
        for event in self.spec.get("found", ()):  # what the attempt goes on from: see resume.py
            self._say("checkpoint", rank=self.spec["ranks"][0]["rank"], **event)
        if "network" in self.spec:
            self._watch_for_notices()  # a network of its own has no way to the machine's metadata
        failed_to_start = self._enter_network() or self._start_ranks()
        if "network" not in self.spec:
            self._watch_for_notices()
        while self._live():
            self._round(timeout=self._patience())
        process.end_descendants()
        if self.status_server is not None:
            self.status_server.close()
        if self.heartbeat is not None:
            self.heartbeat.close()
        self._drain_to_the_end()
        self._flush_progress()
        self._look_for_saved()
        failures = self._failures()
        facts = self._facts() if failures else {}
        alone = [rank.number for rank in self.ranks if os.path.exists(rank.base + ALONE)]
        said = {"alone": alone} if alone else {}
        self._say("end", failures=failures + failed_to_start, ended_by=self.ended_by, facts=facts, **said)
        self._insist()
        self.reserve.release()
        return 1 if failures or failed_to_start else 0

    def _enter_network(self) -> list[dict[str, Any]]:
        """Move into the network of this node, if it has one; gives the failure that stopped it."""
        network = self.spec.get("network")
        try:
            if network:
                netns.enter(network, self.folder)
            if "heartbeat" in self.spec:
                self.heartbeat = Heartbeat(self.spec["heartbeat"])
                self.selector.register(self.heartbeat.socket, selectors.EVENT_READ, self._beat)
        except OSError as error:
            rank = self.spec["ranks"][0]["rank"]
            self._say("failing", rank=rank)  # the ranks of the other nodes would wait for it
            return [failure(rank, 127, time.time(), f"could not start: {error.strerror or error}")]
        return []

    def _start_ranks(self) -> list[dict[str, Any]]:
        """Start all ranks, or none: gives the failure that stopped it."""
        for spec in self.spec["ranks"]:
            try:
                self._start_rank(spec)
            except OSError as error:
                self._end_others(by="failure")
                what = f"{spec['argv'][0]}: {error.strerror or error}"
                return [failure(spec["rank"], 127, time.time(), f"could not start: {what}")]
        return []

    def _start_rank(self, spec: dict[str, Any], environ: Mapping[str, str] = os.environ, beside: int = 0) -> None:
        """Start one rank. `environ` is what it has of whoever wants it to start. Raises OSError.

        `beside` is the process whose network it shares, where that is not the node's own.
        """
        number = spec["rank"]
        done = os.path.join(self.folder, f"rank-{number}.done")
        env = {**environ, **self.spec["env"], **spec["env"], DONE_VARIABLE: done}
        env.update(self._status_environment(number, env))
        read, write = os.pipe()
        try:
            pid = self.start(spec["argv"], self.spec["cwd"], env, write, beside)
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        capture = Capture(read, self.folder, number, self.spec.get("progress"), self.echo, self.reserve)
        rank = Rank(number, pid, capture, done)
        self.ranks.append(rank)
        self.selector.register(read, selectors.EVENT_READ, rank)
        self._say("rank", rank=number, pid=pid)

    def _watch_for_notices(self) -> None:
        """Start the process that asks this machine's metadata whether it is to go away, if the plan says so."""
        if "notices" not in self.spec:
            return
        read, write = os.pipe()
        os.set_blocking(read, False)
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "notice.py")
        try:
            popen = subprocess.Popen(
                [self.spec["worker_python"], "-I", "-S", script, json.dumps(self.spec["notices"])],
                stdin=subprocess.DEVNULL, stdout=write, preexec_fn=process.Birth(),
            )  # fmt: skip
            popen.returncode = 0  # it ends with the node, and is collected by its pid
            self.selector.register(read, selectors.EVENT_READ, lambda: self._take_notices(read))
        except OSError as error:
            os.close(read)
            self._say("warning", message=f"notices of this machine are not watched for: {error.strerror or error}")
        finally:
            os.close(write)

    def _take_notices(self, source: int) -> None:
        """Tell what the watching process has written: a line at a time, each in one piece."""
        try:
            data = os.read(source, 65536)
        except BlockingIOError:
            return
        if not data:
            self.selector.unregister(source)
            os.close(source)
        for line in data.splitlines():
            self._say("notice", **json.loads(line))

    def _status_environment(self, rank: int, env: Mapping[str, str]) -> dict[str, str]:
        """Where this rank may post its progress, if the plan says that it is told so."""
        if STATUS_URL not in self.spec.get("known_at_start", ()):
            return {}
        if self.status_server is None:
            from windlass.worker.statusserver import StatusServer  # for Python scripts alone

            token = os.path.join(self.folder, f"node-{self.spec['node']}.token")
            try:
                self.status_server = StatusServer(self.selector, token, self._take_post)
            except OSError:
                return {}  # progress is then what the output says
        return self.status_server.environment(rank, env)

    def _take_post(self, number: int, progress: dict[str, Any]) -> None:
        for rank in self.ranks:
            if rank.number == number:
                rank.capture.told(progress)

    def _live(self) -> bool:
        return any(rank.exit_code is None for rank in self.ranks)

    def _round(self, timeout: float | None) -> None:
        """Wait for output, a signal or a death; take all there is; then let more gather."""
        ready = self.selector.select(timeout)
        now_ns = time.time_ns()
        busy = False
        for key, _ in ready:
            if key.data is None:
                self._take_signals()
            elif not isinstance(key.data, Rank):
                key.data()
            else:
                busy = True
                self._drain(key.data, now_ns)
        self._reap()
        self._read_marks()
        self._beat()
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            self._kill_all()
        if self.unwritten:
            self._write()
        self._tell_progress()
        self._look_for_meeting()
        if busy:
            time.sleep(ROUND_SECONDS)

    def _patience(self) -> float | None:
        """How long a round may wait: until the grace period ends, or until held-back progress is due."""
        due = [self.kill_at - time.monotonic()] if self.kill_at is not None else []
        if self._newest_progress() != self.progress_sent and not self._is_held_up():
            due.append(self.progress_at + PROGRESS_SECONDS - time.monotonic())
        if self.unwritten:
            due.append(1.0)
        if self.heartbeat is not None:
            due.append(self.heartbeat.due())
        if self.ended_by == "itself" and any(rank.exit_code is None for rank in self.ranks):
            due.append(self.marks_at - time.monotonic())
        return max(0.0, min(due)) if due else None

    def _beat(self) -> None:
        if self.heartbeat is not None and self.heartbeat.turn():
            self._say("unreachable", nodes=list(self.heartbeat.silent))

    # -- output -------------------------------------------------------------------------------------------------------

    def _drain(self, rank: Rank, now_ns: int) -> None:
        if rank.open and not rank.capture.drain(now_ns):
            rank.open = False
            self.selector.unregister(rank.capture.source)
        for event in rank.capture.take_checkpoints():
            self._say("checkpoint", rank=rank.number, **event)
        for change in rank.capture.take_losses():
            self._say("loss", rank=rank.number, **change)
        self._tell_first_step(rank)
        if not self.spoke and rank.capture.spoke:
            self.spoke = True
            self._say("output")
        if rank.capture.dropped_bytes and self.echo is None:
            self._tell_dropped(rank)

    def _tell_first_step(self, rank: Rank, *, at_end: bool = False) -> None:
        if self.first_step_of in (None, rank.number):
            first = rank.capture.take_first_steps(at_end=at_end)
            if first is not None:
                self.first_step_of = rank.number
                self._say("first-step", rank=rank.number, **first)

    def _drain_to_the_end(self) -> None:
        """All ranks are dead: what their pipes still hold is the last of it."""
        for rank in self.ranks:
            self._drain(rank, time.time_ns())
            self._tell_first_step(rank, at_end=True)
            rank.capture.close()
            forget(rank)
            if rank.capture.dropped_bytes and self.echo is None:
                self._tell_dropped(rank, at_once=True)

    def _tell_dropped(self, rank: Rank, *, at_once: bool = False) -> None:
        """Say how much the log of a rank lacks since the disk was full, if that is more than was said."""
        num_bytes, num_lines = rank.capture.dropped_bytes, rank.capture.dropped_lines
        told_at, told = self.dropped_told.get(rank.number, (-DROPPED_SECONDS, 0))
        if num_bytes == told or not (at_once or time.monotonic() - told_at >= DROPPED_SECONDS):
            return
        self.dropped_told[rank.number] = (time.monotonic(), num_bytes)
        text = f"rank {rank.number}: no space left, {num_bytes} bytes ({num_lines} lines) of its log were not kept"
        self._say("warning", message=text, dropped={"rank": rank.number, "bytes": num_bytes, "lines": num_lines})

    def _look_for_saved(self) -> None:
        """Tell if nothing of what the script has saved is called as the job says: a restart would begin anew."""
        request, since = self.spec.get("resume"), self.spec.get("since", 0.0)
        if request is None or self.spec["ranks"][0]["rank"] != 0:
            return
        try:
            if resume.candidates(request, since):
                return
            event = resume.missing(request, since)
            if self.first_step_of is not None or event["entries"]:  # else it may not have come so far
                self._say("checkpoint", rank=0, **event, at_end=True)
        except OSError:
            pass  # the folder can no longer be read, which ranks have said if it matters

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

    def _tell_progress(self) -> None:
        if time.monotonic() - self.progress_at >= PROGRESS_SECONDS and not self._is_held_up():
            self._flush_progress()

    def _is_held_up(self) -> bool:
        """Whether a full disk keeps what is told from those who read it; what is echoed has reached them."""
        return bool(self.unwritten) and self.echo is None

    def _look_for_meeting(self) -> None:
        """Report, once, that the ranks make progress and have never met: two looks at them agree on it."""
        now = time.monotonic()
        if self.meeting_at is None and self.progress_sent:
            self.meeting_at = now + MEETING_SECONDS
        if not self.meeting_at or now < self.meeting_at or not self._has_peers():
            return
        port = (self.status_server.port,) if self.status_server is not None else ()
        self.looks += 1
        self.meeting_at = now + MEETING_SECONDS if self.looks == 1 else 0.0
        if not all(rank.exit_code is None and looks_alone(rank.pid, rank.base, port) for rank in self.ranks):
            self.meeting_at = 0.0
        elif self.looks == 2:
            self._say("alone", ranks=[rank.number for rank in self.ranks])

    def _flush_progress(self) -> None:
        progress = self._newest_progress()
        if progress and progress != self.progress_sent:
            self.progress_at = time.monotonic()
            self.progress_sent = progress
            self._say("progress", progress=progress)

    # -- signals and deaths -------------------------------------------------------------------------------------------

    def _hear_signals(self) -> None:
        read, write = os.pipe()
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in (*STOP_SIGNALS, STOP_NOW_SIGNAL, LOOK_SIGNAL, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self.signals = read
        self.selector.register(read, selectors.EVENT_READ, None)

    def _take_signals(self) -> None:
        try:
            numbers = os.read(self.signals, 4096)
        except BlockingIOError:
            return
        if LOOK_SIGNAL in numbers:
            self._look()
        if STOP_NOW_SIGNAL in numbers:
            self.ended_by = "stop"
            self._kill_all()
        elif any(number in numbers for number in STOP_SIGNALS):
            self._note_sigterm()
            self._end_others(by="stop")

    def _note_sigterm(self) -> None:
        """Whether it is the machine that goes down, the supervisor knows: not if it has sent the signal itself."""
        if self.kill_at is None and self.ended_by == "itself":
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            self._say("notice", source="sigterm", action="terminate", time=now)

    def _reap(self) -> None:
        """Collect the dead, ranks and adopted orphans alike. The first failure ends the other ranks."""
        dead = [rank for rank in self.ranks if rank.exit_code is None and self._is_dead(rank)]
        for rank in dead:
            process.send_group(rank.pid, signal.SIGKILL)  # what the rank has started ends with it
            self._drain(rank, time.time_ns())
            self._say("rank", rank=rank.number, exit_code=rank.outcome())
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
            self._look()
        else:
            live = [rank for rank in self.ranks if rank.exit_code is None and rank is not failed]
            ask_after_failure(failed, live)
        self._say("failing", rank=failed.number, waited=waited)
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
        grace: float = self.spec["grace_seconds"]
        patience = min(grace, EXIT_SECONDS) if self._has_peers() else grace
        for rank in self.ranks:
            failed_at = rank.failed_at() if rank.exit_code is None else None
            if failed_at is not None and time.time() - failed_at >= patience:
                text = f"rank {rank.number} failed and has not exited for {patience:g} s: exit handlers run"
                self._say("warning", message=text)
                self._drain(rank, time.time_ns())
                self._fail(rank)
                return

    def _has_peers(self) -> bool:
        """Whether the attempt has more than one rank."""
        env = {**self.spec["env"], **self.spec["ranks"][0]["env"]}
        return len(self.spec["ranks"]) > 1 or env.get("WORLD_SIZE", "1") != "1"

    def _children(self) -> set[int]:
        """Pids of the processes that we wait for by name."""
        return {rank.pid for rank in self.ranks}

    def _look(self) -> None:
        """Take the stacks of the ranks that live. What they write then is no sign of life."""
        before = [(rank, rank.capture.spoke) for rank in self.ranks]
        live = [rank for rank in self.ranks if rank.exit_code is None]
        found = take_stacks(live, lambda rank: rank.capture.drain(time.time_ns()))
        for rank, spoke in before:
            rank.capture.spoke = spoke
        if found:
            self._say("hang", ranks=found)

    def _facts(self) -> dict[str, Any]:
        env = {**self.spec["env"]}
        folders = [env.get("WINDLASS_OUTPUT_DIR", ""), self.folder, self.spec["cwd"], os.environ.get("TMPDIR", "/tmp")]
        facts = self.evidence.facts([rank.pid for rank in self.ranks], [folder for folder in folders if folder])
        if self.listeners:
            facts["listeners"] = self.listeners
        if "held_port" in self.spec:
            facts["held_port"] = self.spec["held_port"]
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
        grace: float = self.spec["grace_seconds"]
        self.kill_at = time.monotonic() + (min(grace, FAILURE_GRACE_SECONDS) if by == "failure" else grace)

    def _kill_all(self) -> None:
        self.kill_at = None
        for rank in self.ranks:
            if rank.exit_code is None:
                rank.is_ended_by_us()
                process.send_group(rank.pid, signal.SIGKILL)

    def _failures(self) -> list[dict[str, Any]]:
        return [self._failure(rank) for rank in self.ranks if rank.outcome() != 0]

    def _failure(self, rank: Rank) -> dict[str, Any]:
        failed_at = rank.failed_at()
        tail, trace_at = with_error_file(rank.capture.tail), failed_at or rank.capture.traceback_at
        found = failure(rank.number, rank.outcome(), rank.ended_at, tail, trace_at, ended_by_us=rank.ended_by_us)
        return found if failed_at is None else {**found, "marked": True}

    # -- the events file ----------------------------------------------------------------------------------------------

    def _say(self, kind: str, **data: Any) -> None:
        line = json.dumps({"kind": kind, "at": time.time(), **data}) + "\n"
        self.unwritten.append(line.encode())
        self.is_urgent |= kind in URGENT or "dropped" in data or (kind == "rank" and "exit_code" in data)
        self._write()
        if self.echo is not None:
            self.echo(NODE_TAG, line.encode())

    def _write(self) -> None:
        """Write what is not yet written. A full disk only delays it, and while there is a reserve, nothing urgent."""
        if not (self.reserve.has_room() or self.is_urgent):
            return
        while self.unwritten:
            try:
                written = os.write(self.events, self.unwritten[0])
            except OSError as error:
                self.reserve.met_full()
                if self.is_urgent and error.errno in FULL_ERRORS and self.reserve.release():
                    continue
                return
            if written < len(self.unwritten[0]):
                self.unwritten[0] = self.unwritten[0][written:]
            else:
                self.unwritten.pop(0)
        self.is_urgent = False
        if self.wake is not None:
            try:
                os.write(self.wake, b".")
            except OSError:
                self.wake = None  # whoever listened is gone; its successor reads the file

    def _insist(self) -> None:
        """The last word must be written, or the run would be taken for lost; unless the node is to end at once."""
        give_up = time.monotonic() + FULL_DISK_PATIENCE_SECONDS
        while self._is_held_up() and time.monotonic() < give_up:
            if select.select([self.signals], [], [], 0.5)[0] and STOP_NOW_SIGNAL in os.read(self.signals, 4096):
                return
            self._write()


def failure(
    rank: int, exit_code: int, at: float, tail: str, traceback_at: float | None = None, *, ended_by_us: bool = False
) -> dict[str, Any]:
    """What `blame` needs to know of a rank that failed."""
    return {
        "rank": rank,
        "exit_code": exit_code,
        "at": at,
        "tail": tail[-16384:],
        "traceback_at": traceback_at,
        "ended_by_us": ended_by_us,
    }
