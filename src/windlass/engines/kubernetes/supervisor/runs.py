"""Controls runs whose supervisors are in their clusters; the local store is a cache of the records in the clusters."""

from __future__ import annotations

import contextlib
import copy
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.access.lease import Lease, holder_of
from windlass.engines.kubernetes.access.optional import ANSWER_SECONDS, at_once
from windlass.engines.kubernetes.objects import layout, manifests, pod_assignment, ttl
from windlass.engines.kubernetes.objects.namespace import ClusterNamespace
from windlass.engines.kubernetes.objects.summary import summary_of
from windlass.engines.kubernetes.objects.supervisor_manifests import filled, keyed, stamped, with_digest
from windlass.engines.kubernetes.objects.workloads.job import BATCH
from windlass.engines.kubernetes.reading import supervisor_status
from windlass.engines.kubernetes.reading.discovery.snapshot import WAITING, in_phase
from windlass.engines.kubernetes.reading.supervisor_status import Absence
from windlass.engines.kubernetes.running import expiry, markers, shutdown
from windlass.engines.kubernetes.running.log_fetch import LogReader
from windlass.engines.kubernetes.supervisor import outputs
from windlass.engines.kubernetes.supervisor.fenced import held, lease_of, writing
from windlass.engines.kubernetes.supervisor.metrics import read_metrics
from windlass.engines.kubernetes.supervisor.record import ClusterRecord, DamagedRecord, Head, head_manifest
from windlass.engines.kubernetes.supervisor.updates import RunUpdate, UpdateReader, plan_in
from windlass.engines.resuming import reopen
from windlass.engines.values import RunState
from windlass.errors import EngineError, StoreError, StoreFull, UsageError, WindlassError, error_line
from windlass.plan.plan import Plan
from windlass.plan.steps import SupervisorStep
from windlass.runs import metrics, stop_request
from windlass.runs.events import ConditionChanged, Event, Json, RunEnded, StopRequested
from windlass.runs.machine import this_machine
from windlass.runs.phase import Phase
from windlass.runs.record import REMOVED, ROTATED, SUPERVISOR_ABSENT, Dropped, Status
from windlass.runs.store import RunWriter, Store, locked
from windlass.runs.warnings import with_incomplete_logs
from windlass.supervise.log_tail import missing_lines

if TYPE_CHECKING:
    from windlass.engines.kubernetes.running.backend import KubernetesBackend

REFRESH_SECONDS: Final = 1.0
"""Maximum age in seconds of the cached record of a run that a command follows."""
ENDED_REFRESH_SECONDS: Final = 30.0
"""Maximum age in seconds of the cached record of an ended run, which another machine may resume."""
QUIET: Final = "the run's supervisor in cluster {} has given no sign of life since"
EXPIRED: Final = "it has expired there, or was removed"
GONE_SECONDS: Final = 60.0
"""Time limit in seconds for the deletion of an earlier supervisor's Job."""


class Stale(NamedTuple):
    """Reason why the record of a run cannot be read at present."""

    since: float
    """Time of the first failed read, in Unix seconds."""
    type: str
    """Type of the condition that the run has while its record cannot be read."""
    why: str
    message: str


class ClusterSupervised:
    """Manages the runs of a store whose supervisors are in their clusters."""

    def __init__(self, store: Store) -> None:
        self.pid = os.getpid()
        """Id of the process that owns the connections."""
        self._store = store
        self._reader = UpdateReader(store)
        self._next: dict[str, float] = {}
        """Time of the next refresh of each run's cached record, in monotonic seconds."""
        self._stale: dict[str, Stale] = {}
        """Why a run's record cannot be read, by run id; runs whose record can be read have no entry."""
        self._read_at: dict[str, float] = {}
        """Time of the last successful read of each run's record, in Unix seconds."""
        self._absent: dict[str, Absence | None] = {}
        """Why a run has no acting supervisor, by run id; None if it has one."""
        self._quiet_since: dict[str, float | None] = {}
        """Time of an overdue supervisor's last Lease renewal in Unix seconds, by run id; None if no renewal is
        overdue."""
        self._fetch_at: dict[str, float] = {}
        """Earliest time of the next fetch of each run's outputs, in monotonic seconds."""
        self._elsewhere: dict[str, str] = {}
        """Why the outputs of a run cannot be fetched to this machine, by run id."""
        self._metrics_at: dict[str, float] = {}
        """Time of the next read of each run's metrics, in monotonic seconds."""
        self._metrics_known: dict[str, str] = {}
        """Version of each run's metrics in the cluster that this process has copied."""
        self._removed: set[str] = set()
        """Runs that no longer exist in the cluster."""
        self._leases: dict[str, Lease] = {}
        """Leases of stopped runs without a supervisor, whose end this process records."""

    def reconnected(self, store: Store) -> ClusterSupervised:
        """Returns a copy for another thread, with the same runs and cluster connections, and another connection to the
        store.
        """
        found = copy.copy(self)
        found._store, found._reader = store, self._reader.reconnected(store)
        return found

    # -- start --------------------------------------------------------------------------------------------------------

    def start(self, backend: KubernetesBackend, owner: Json, status: Status, events: Iterable[Event]) -> None:
        """Creates the supervisor of a run, and the record with the events so far. Existing objects are kept. Raises
        EngineError.
        """
        plan, client = backend.plan, backend.client
        head = Head(tuple(events), summary_of(status, {}), 0, holder_of(self._store.home))
        self._create(client, owner, [head_manifest(owner, head), *_objects(plan)])

    def resume(self, writer: RunWriter, backend: KubernetesBackend, plan: Plan | None, checkpoint: str | None) -> None:
        """Continues an ended run with a new supervisor. Raises UsageError, EngineError, StoreError."""
        client, run_id = backend.client, writer.status.id
        self._require_record(client, run_id)
        self._require_outputs(writer.status)
        with held(client, writer.status, self._store.home), writing(client, writer) as first:
            owner = client.get("v1", "ConfigMap", run_id)
            backend.create_shared(owner)
            expiry.release(client, run_id)
            self._delete_job(client, run_id)
            markers.forget(client, run_id)
            client.delete("v1", "ConfigMap", layout.supervisor_name(run_id))
            *contents, job = _objects(backend.plan)
            # The plan is created before the resume is recorded: other machines read it once they observe the resume.
            self._create(client, owner, contents)
            reopen(first, self._store.run_dir(run_id), plan, checkpoint)
            self._create(client, owner, [job])
        self._next.pop(run_id, None)

    @staticmethod
    def _require_record(client: Client, run_id: str) -> None:
        if client.get_if_exists("v1", "ConfigMap", layout.record_name(run_id)) is None:
            raise UsageError(
                f"{run_id} is no longer in the cluster: {EXPIRED}", f"a new run of its job: windlass rerun {run_id}"
            )

    def _require_outputs(self, status: Status) -> None:
        """Fetches the outputs that only the supervisor's pod has, which is deleted for a resume. Raises EngineError."""
        try:
            self.fetch_outputs(status, is_patient=True)
        except UsageError:  # another machine has fetched the outputs, or they are lost
            pass
        except (EngineError, OSError) as error:
            raise EngineError(
                f"{status.id} was not resumed: that deletes its outputs, which are only in the cluster and could not "
                f"be fetched: {error_line(error)}",
                f"windlass cp {status.id}:output FOLDER; or start a new run: windlass rerun {status.id}",
            ) from error

    @staticmethod
    def _create(client: Client, owner: Json, objects: Iterable[Json]) -> None:
        for made in objects:
            client.create_if_absent(manifests.owned(made, owner))

    def _delete_job(self, client: Client, run_id: str) -> None:
        """Deletes an earlier supervisor's Job, and waits for the deletion, since the next Job has the same name."""
        name, give_up = layout.supervisor_name(run_id), time.monotonic() + GONE_SECONDS
        while client.delete(BATCH, "Job", name):
            if time.monotonic() > give_up:
                raise EngineError(f"Job {name} is still being deleted after {GONE_SECONDS:g} s", "try again")
            time.sleep(REFRESH_SECONDS / 5)

    # -- the cache ----------------------------------------------------------------------------------------------------

    def status(self, status: Status) -> Status:
        """Returns the current status of a run; if the cluster does not answer, the cached status with a condition for
        the outage.
        """
        return self.states([status])[0].status

    def states(self, statuses: Iterable[Status]) -> list[RunState]:
        """Returns the current states of runs; clusters are read in parallel, and only for outdated cached records.
        Raises StoreError.
        """
        statuses = list(statuses)
        due = [status for status in statuses if time.monotonic() >= self._next.get(status.id, 0.0)]
        updates = self._reader.read(due)
        for status in due:
            self._take(status, updates.get(status.id))
        return [self._state(status.id) for status in statuses]

    def is_stale(self, run_id: str) -> bool:
        """Returns whether the last read of a run's record failed."""
        return run_id in self._stale

    def fetch_outputs(self, status: Status, *, is_patient: bool) -> None:
        """Fetches the outputs of an ended run from its supervisor's pod, unless they are on this machine.

        Raises UsageError if the pod no longer has the outputs, EngineError, OSError.
        """
        run_dir = self._store.run_dir(status.id)
        if outputs.is_due(status, run_dir):
            host = this_machine(os.environ).host
            outputs.fetch(self.client(status.id), status, run_dir, host, is_patient=is_patient)

    def with_outputs(self, status: Status) -> Status:
        """Tries to fetch the outputs of an ended run, at most once in ENDED_REFRESH_SECONDS; returns the updated
        status.
        """
        if not outputs.is_due(status, self._store.run_dir(status.id)):
            return status
        if time.monotonic() >= self._fetch_at.get(status.id, 0.0):
            self._fetch_at[status.id] = time.monotonic() + ENDED_REFRESH_SECONDS
            try:
                self.fetch_outputs(status, is_patient=False)
            except UsageError as error:  # another machine has fetched the outputs, or they are lost
                self._elsewhere[status.id] = error.message
            except (WindlassError, OSError):
                pass
        return replace(status, output_dir=self._store.status(status.id).output_dir)

    def elsewhere(self, run_id: str) -> str:
        """Returns why the last call of `with_outputs` could not fetch a run's outputs; empty if they were fetched."""
        return self._elsewhere.get(run_id, "")

    def with_missing_lines(self, status: Status) -> Status:
        """Returns the status with the lines missing from this machine's logs; the supervisor, which reads no logs,
        cannot record them.
        """
        found = {one.key: one for one in status.dropped}
        for attempt in status.attempts:
            missing = missing_lines(self._store.run_dir(status.id) / f"attempt-{attempt.number}")
            lacking = [Dropped(attempt.number, rank, 0, num, ROTATED) for rank, num in missing.items()]
            found |= {one.key: one for one in lacking}
        status = replace(status, dropped=tuple(found[key] for key in sorted(found)))
        return replace(status, warnings=with_incomplete_logs(status) if found else status.warnings)

    def copy_metrics(self, status: Status) -> None:
        """Updates the metrics file in the run's folder, as often as the cached record.

        If the cluster does not answer, an earlier copy is kept; without one, raises EngineError. Raises OSError.
        """
        run_id, path = status.id, self._store.run_dir(status.id) / metrics.FILE
        if time.monotonic() < self._metrics_at.get(run_id, 0.0):
            return
        self._metrics_at[run_id] = time.monotonic() + _pause_seconds(status)
        known = self._metrics_known.get(run_id, "") if path.exists() else ""
        answer = at_once({run_id: lambda: read_metrics(self.client(run_id), run_id, known)}).get(run_id)
        if isinstance(answer, tuple):
            self._metrics_known[run_id], data = answer
            if data is not None:
                metrics.replace_file(path, metrics.compacted(data, metrics.MAX_POINTS).encode())
        elif not path.exists():
            self._metrics_at.pop(run_id)
            if isinstance(answer, EngineError):
                raise answer
            message = answer.message if answer is not None else f"has not answered within {ANSWER_SECONDS:g} s"
            raise EngineError(
                f"the metrics of {run_id} are in cluster {status.target}, which cannot be read: {message}"
            )

    def client(self, run_id: str) -> Client:
        """Returns the client for the run's namespace; each client is created once. Raises EngineError, UsageError."""
        return self._reader.client(run_id)

    def _take(self, status: Status, update: RunUpdate | WindlassError | None) -> None:
        self._next[status.id] = time.monotonic() + _pause_seconds(status)
        if not isinstance(update, RunUpdate):
            self._stale[status.id] = self._why_stale(status, update)
            return
        self._stale.pop(status.id, None)
        self._read_at[status.id] = time.time()
        self._absent[status.id] = update.absence
        self._quiet_since[status.id] = update.quiet_since
        if update.is_removed:
            self._removed.add(status.id)
            self._end_removed(status)
            return
        self._removed.discard(status.id)
        try:
            self._copy(status.id, update)
        except StoreFull:
            raise
        except StoreError as error:  # a damaged record must not hide the other runs
            self._stale[status.id] = self._why_stale(status, error)
            return
        status = self._store.status(status.id)
        if not update.is_started and not status.phase.is_terminal:
            self._start_again(status)
        elif update.absence:
            self._end_stopped(status.id)

    def _why_stale(self, status: Status, error: WindlassError | None) -> Stale:
        """Returns why a run's record could not be read; `error` is None if the cluster did not answer in time."""
        before = self._stale.get(status.id)
        since = time.time() if before is None else before.since
        if isinstance(error, DamagedRecord | StoreError):
            return Stale(since, "RecordDamaged", error.message, error.message)
        why = f"has not answered within {ANSWER_SECONDS:g} s" if error is None else f"cannot be read: {error.message}"
        message = f"the record in cluster {status.target} {why}; the run continues without this machine"
        return Stale(since, "ClusterUnreachable", f"cluster {status.target} {why}", message)

    def _copy(self, run_id: str, update: RunUpdate) -> None:
        if update.events:
            self._store.copy(run_id, update.events, update.plan)
            pod_assignment.restore_assignments(self._store.run_dir(run_id), update.events)
        progress = update.summary.get("progress")
        if isinstance(progress, dict) and progress:
            self._store.copy_progress(run_id, progress)

    def _state(self, run_id: str) -> RunState:
        status, now = self._store.status(run_id), time.time()
        if (absence := self._absent.get(run_id)) and run_id not in self._stale and not status.phase.is_terminal:
            # imported here, since only runs without a supervisor need this module
            from windlass.engines.kubernetes.reading.diagnose.supervisors import absent

            advice = absent(absence.message, absence.log, status.target)
            since = status.times.phase_since if absence.since is None else absence.since
            condition = ConditionChanged(SUPERVISOR_ABSENT, absence.message, since, absence.log, advice.fix)
            if absence.is_training and status.phase in (*WAITING, Phase.STARTING):
                status = in_phase(status, Phase.TRAINING, "", since)  # lists of a cluster's runs show this phase too
            return RunState(status.with_condition(condition), now)
        if run_id not in self._stale:
            if run_id in self._removed and status.supervision.condition is None:
                message = f"the run is no longer in the cluster: {EXPIRED}; its record is on this machine"
                condition = ConditionChanged(REMOVED, message)  # the time of the removal is unknown
                status = status.with_condition(condition)
            if (quiet_since := self._quiet_since.get(run_id)) and not status.phase.is_terminal:
                return RunState(status, quiet_since, QUIET.format(status.target))
            return RunState(status, now)
        since, kind, why, message = self._stale[run_id]
        condition = ConditionChanged(kind, message, since)
        as_of = self._read_at.get(run_id, self._recorded_at(status))
        return RunState(status if status.phase.is_terminal else status.with_condition(condition), as_of, why)

    def _recorded_at(self, status: Status) -> float:
        """Returns the time of the newest event or progress in the cached record, for a run that this process has not
        read.
        """
        events = self._store.events(status.id, status.last_seq - 1)
        times = [status.times.created_at, *(event.time for event in events), status.progress.at]
        return min(time.time(), max(at for at in times if isinstance(at, int | float)))

    def _start_again(self, status: Status) -> None:
        """Creates the supervisor of a run whose submission was killed before the supervisor was created."""
        # imported here, since commands that only show a run do not need this module
        from windlass.engines.kubernetes.running.backend import KubernetesBackend

        try:
            plan = self._store.plan(status.id)
            with contextlib.closing(KubernetesBackend(plan, self._store.run_dir(status.id))) as backend:
                owner = backend.client.get("v1", "ConfigMap", status.id)  # another machine may have removed the run
                self.start(backend, backend.create_shared(owner), status, self._store.events(status.id))
            self._absent.pop(status.id, None)
        except WindlassError as error:
            self._absent[status.id] = Absence(f"no supervisor can be started: {error.message}")

    def _end_stopped(self, run_id: str) -> None:
        """Records the end of a run for which a stop was requested and that has neither a supervisor nor a live pod."""
        client = self.client(run_id)
        with contextlib.suppress(WindlassError):
            if markers.requested_stop(client, run_id) is None or shutdown.live_pods(client, run_id):
                return
            writer = self._store.writer(run_id)
            if writer is None:
                return
            # Later calls use the same Lease object, which takes over another holder's Lease only after it has observed
            # no renewal for the Lease's duration.
            lease = self._leases.setdefault(run_id, lease_of(client, run_id, self._store.home))
            with contextlib.closing(writer), contextlib.ExitStack() as held:
                if writer.status.phase.is_terminal or not lease.ensure():
                    return
                held.callback(lease.release)
                with writing(client, writer) as first:
                    first.append(StopRequested(stop_request.ELSEWHERE, True))
                    first.append(RunEnded(Phase.STOPPED, reason="stop"))
                self._absent.pop(run_id, None)
                markers.put_end(client, run_id, stopped=True, well=False)
                client.delete(BATCH, "Job", layout.supervisor_name(run_id))

    def _end_removed(self, status: Status) -> None:
        """Ends the local record, the only one left, of a run that has expired or that another machine has removed."""
        writer = None if status.phase.is_terminal else self._store.writer(status.id)
        if writer is None:
            return
        with contextlib.closing(writer):
            if self._may_have_expired(status):  # the run may have ended before it expired, unseen by this machine
                writer.append(RunEnded(Phase.LOST, reason="expired"))
                return
            writer.append(StopRequested(stop_request.REMOVED, True))
            writer.append(RunEnded(Phase.STOPPED, reason=stop_request.REMOVED))

    def _may_have_expired(self, status: Status) -> bool:
        last = max(event.time for event in self._store.events(status.id))
        return time.time() - last > ttl.seconds_of(self._store.plan(status.id))

    def import_run(self, client: Client, place: ClusterNamespace, run_id: str) -> bool:
        """Copies the record of a run that another machine started to the local store; returns False if the run has no
        supervisor in the cluster.

        Raises Refused, Unreachable, DamagedRecord, StoreError.
        """
        try:
            events = ClusterRecord(client, run_id).events()
            plan = plan_in(client, place, run_id)
        except Refused as error:
            if error.status != 404:
                raise
            return False
        self._store.copy(run_id, events, plan.to_text())
        pod_assignment.restore_assignments(self._store.run_dir(run_id), events)
        return True

    # -- commands -----------------------------------------------------------------------------------------------------

    def stop(self, run_id: str, *, now: bool) -> None:
        """Requests the end of a run from its supervisor; if none runs, ends the run's pods directly.

        Raises NoSuchRun, Refused, Unreachable.
        """
        client = self.client(run_id)
        pods = client.find("v1", "Pod", supervisor_status.selector(run_id))["items"]
        if any(supervisor_status.is_running(pod) for pod in pods):
            shutdown.request(client, run_id, now=now)
        else:
            shutdown.stop(client, run_id, now=now)
        self._next.pop(run_id, None)

    @contextlib.contextmanager
    def logs(self, run_id: str, *, follow: bool) -> Iterator[tuple[Path, Callable[[], bool] | None]]:
        """Yields the folder with a run's logs, read from its pods. Raises EngineError if no pod has a log.

        Only one process at a time writes to the run's folder; a second process that follows the logs uses a temporary
        folder.
        """
        with contextlib.ExitStack() as stack:
            folder = self._store.run_dir(run_id)
            if not stack.enter_context(locked(folder / "logs.lock", is_patient=False)):
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="windlass-logs-")))
            reader = stack.enter_context(contextlib.closing(LogReader(self.client(run_id), run_id, folder)))
            try:
                has_logs = reader.read()
            except EngineError:
                if not any(folder.glob("attempt-*/rank-*.log")):
                    raise
                has_logs = True  # the folder has logs from an earlier read
            if not has_logs and not follow and not any(folder.glob("attempt-*")):
                raise EngineError(f"{run_id} has no pod with a log", "its pods are gone, or have not started yet")
            if follow:
                reader.follow()
            yield folder, reader.is_over if follow else None

    def read_logs(self, run_id: str) -> None:
        """Updates the logs in the run's folder; does nothing if the cluster does not answer."""
        with contextlib.suppress(WindlassError, OSError), self.logs(run_id, follow=False):
            pass


def _pause_seconds(status: Status) -> float:
    """Returns the maximum age of what is cached of a run, in seconds."""
    return ENDED_REFRESH_SECONDS if status.phase.is_terminal else REFRESH_SECONDS


def _objects(plan: Plan) -> list[Json]:
    """Returns the objects of a run's supervisor, with the Job last."""
    key, contents, service, job = plan.manifests(SupervisorStep)
    text = plan.to_text()
    return [keyed(key, plan.service_files), filled(contents, text), service, with_digest(stamped(job), text)]
