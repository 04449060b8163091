"""Lease of a run: if several machines or homes have a supervisor for the run, only the Lease's holder acts.

This works like client-go's leader election: the holder renews a Lease (coordination.k8s.io/v1). Another supervisor
acquires it after the whole duration without a renewal, measured by its own clock, since clocks of machines differ. A
supervisor with the same home on the same machine acquires the Lease at once: the lock of the run already proves that
the holder has ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn

from windlass.engines.kubernetes.access import background
from windlass.engines.kubernetes.access.absence import Absence
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.objects import labels, layout, manifests
from windlass.engines.kubernetes.objects.quantity import seconds_of
from windlass.errors import EngineError
from windlass.runs.clock import Clock
from windlass.runs.machine import this_machine
from windlass.supervise.backend import HeldElsewhere
from windlass.worker import process

API: Final = "coordination.k8s.io/v1"
KIND: Final = "Lease"
DURATION_SECONDS: Final = 40.0
RENEW_SECONDS: Final = 10.0
SKEW_SECONDS: Final = 20.0
"""Seconds by which the clocks of two machines may differ, for a command that reads the Lease only once."""


def holder_of(home: Path) -> str:
    """Returns the identity of this process as a holder; supervisors with the same home on the same machine share its
    prefix.
    """
    machine = this_machine(os.environ)
    digest = hashlib.sha256(f"{machine.id} {home.resolve()}".encode()).hexdigest()[:12]
    return f"{machine.host}_{digest}_{os.getpid()}-{process.boot_id()[:8]}"


class Lease:
    """Lease of one run, from the view of one supervisor."""

    def __init__(
        self,
        client: Client,
        run_id: str,
        holder: str,
        *,
        clock: Clock | None = None,
        has_ended: Callable[[str], bool] = lambda host: False,
    ) -> None:
        """`has_ended` returns whether the cluster reports that the holder on a host has ended, so that its Lease can be
        acquired before it expires. The function may raise Refused and Unreachable.
        """
        self._client = client
        self.name = run_id
        """Name of the Lease, which is also the name of the owner ConfigMap."""
        self._holder = holder
        self._clock = clock or Clock()
        self._has_ended = has_ended
        self._lock = threading.Lock()
        self._seen: tuple[str, str] | None = None
        """Holder and renewal time of another supervisor's Lease, as last read."""
        self._seen_at = 0.0
        self._renewed_at: float | None = None
        """Time of this supervisor's last renewal; None while it does not hold the Lease."""
        self._done = threading.Event()
        self._denial = Absence(self._clock.boottime)
        self._unfenced_at: float | None = None
        """Time of the last check if it found that no Lease can be held, else None."""
        self.lost_to = ""
        """Supervisor that acquired the Lease instead of this one; empty for none."""

    def ensure(self) -> bool:
        """Acquires the Lease if necessary; returns False while it is unknown whether the current holder is alive.

        Raises HeldElsewhere, and Refused or Unreachable if the Lease cannot be read.
        """
        with self._lock:
            if self.lost_to:
                raise HeldElsewhere(f"the run is supervised by {self.lost_to}")
            if self._is_fresh() or self._is_unfenced():
                return True
            try:
                return self._take()
            except Refused as error:
                if error.is_absent(self.name, "ConfigMap") or self._is_denied(error):
                    # The Lease is requested again later: the user may be granted the right, or the refusal may be
                    # temporary.
                    self._unfenced_at = self._clock.boottime()
                    return True
                if error.status == 403 and not self._is_known():
                    # The caller repeats the request: authorizers that restart refuse requests for a moment.
                    return False
                # Another supervisor acquired the Lease, or the holder renewed it meanwhile: read it again.
                if error.status == 409:
                    return False
                raise

    def keep(self, changed: Callable[[], None]) -> None:
        """Renews the Lease in a thread from now on; calls `changed` when the Lease is lost."""

        def turn() -> bool:
            if self._done.wait(RENEW_SECONDS):
                return True
            try:
                self.renew()
            except HeldElsewhere:
                changed()
                return True
            except EngineError:
                pass  # While the server does not respond, no other supervisor can acquire the Lease.
            return False

        background.start(f"lease of {self.name}", turn, self._done, self._client.health)

    def renew(self) -> None:
        """Renews the Lease now. Raises HeldElsewhere, Refused, Unreachable."""
        with self._lock:
            self._take()

    def release(self) -> None:
        """Releases the Lease if the cluster responds."""
        self._done.set()
        if self._renewed_at is None:
            return
        with self._lock, contextlib.suppress(EngineError):
            found = self._client.get(API, KIND, self.name)
            if found["spec"].get("holderIdentity") == self._holder:
                self._put({**found, "spec": {**found["spec"], "holderIdentity": ""}})
            self._renewed_at = None

    def _is_fresh(self) -> bool:
        """Whether no other supervisor can have acquired the Lease, since this supervisor renewed it recently."""
        lasts = DURATION_SECONDS - RENEW_SECONDS
        return self._renewed_at is not None and self._clock.boottime() - self._renewed_at < lasts

    def _is_unfenced(self) -> bool:
        """Whether a recent check found that no Lease can be held: the user has no right to Leases, or the run was
        removed.
        """
        return self._unfenced_at is not None and self._clock.boottime() - self._unfenced_at < RENEW_SECONDS

    def _is_known(self) -> bool:
        """Whether this supervisor has read the Lease before, so that a refusal cannot mean a missing right."""
        return self._renewed_at is not None or self._seen is not None

    def _is_denied(self, error: Refused) -> bool:
        """Whether the user has no right to leases: requests were refused for some seconds, and none succeeded
        before.
        """
        return self._denial.is_confirmed(is_absent=error.status == 403 and not self._is_known())

    def _take(self) -> bool:
        began, self._unfenced_at = self._clock.boottime(), None
        found = self._client.get_if_exists(API, KIND, self.name)
        if found is None:
            owner_config_map = self._client.get("v1", "ConfigMap", self.name)
            self._client.create(manifests.owned(self._manifest(owner_config_map), owner_config_map))
            self._renewed_at = began
            return True
        spec = found.get("spec") or {}
        holder = str(spec.get("holderIdentity") or "")
        if holder and not is_same_place(holder, self._holder):
            if self._renewed_at is not None:
                self._lose(holder)
            if not self._has_ended(host_of(holder)) and not self._is_expired(holder, spec):
                return False
        transitions = int(spec.get("leaseTransitions") or 0) + (holder != self._holder)
        self._put({**found, "spec": {**spec, **self._spec(transitions)}})
        self._renewed_at = began
        return True

    def _is_expired(self, holder: str, spec: Mapping[str, Any]) -> bool:
        """Whether another holder has not renewed the Lease for its whole duration. Raises HeldElsewhere if it has."""
        seen = (holder, str(spec.get("renewTime")))
        if self._seen is None:
            self._seen, self._seen_at = seen, self._clock.boottime()
        elif self._seen != seen:
            self._lose(holder)
        return self._clock.boottime() - self._seen_at >= float(spec.get("leaseDurationSeconds") or DURATION_SECONDS)

    def _lose(self, holder: str) -> NoReturn:
        self.lost_to = described(holder)
        raise HeldElsewhere(f"the run is supervised by {self.lost_to}")

    def _put(self, lease: Mapping[str, Any]) -> None:
        """Writes the Lease, unless it has changed since it was read. Raises Refused (409)."""
        self._client.call("PUT", self._client.path(API, KIND, self.name), lease)

    def _manifest(self, owner_config_map: Mapping[str, Any]) -> dict[str, Any]:
        meta = owner_config_map["metadata"]
        its = labels.like(meta["labels"], labels.SUPERVISOR, **{layout.MARKER_LABEL: "lease"})
        return {
            "apiVersion": API,
            "kind": KIND,
            "metadata": {"name": self.name, "namespace": meta["namespace"], "labels": its},
            "spec": self._spec(0),
        }

    def _spec(self, transitions: int) -> dict[str, Any]:
        now = self._clock.time() + self._client.ahead  # Commands compare this time with the cluster's clock.
        stamp = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": int(DURATION_SECONDS),
            "renewTime": stamp,
            "leaseTransitions": transitions,
        }


def is_same_place(one: str, other: str) -> bool:
    """Whether two holders are supervisors with the same home on the same machine."""
    return one.rpartition("_")[0] == other.rpartition("_")[0]


def host_of(holder: str) -> str:
    """Returns the host of a holder; for a pod, this is the name of the pod."""
    place = holder.rpartition("_")[0]
    return place.rpartition("_")[0] or place


def described(holder: str) -> str:
    """Formats a holder for messages: its pid and host."""
    return f"process {holder.rpartition('_')[2].partition('-')[0]} on {host_of(holder)}"


def held_elsewhere(client: Client, run_id: str, home: Path, now: float) -> str:
    """Returns the supervisor on another machine or with another home that recently renewed the Lease of a run; empty if
    none did.

    Raises like `fresh_holder`.
    """
    holder = fresh_holder(client, run_id, now)
    return described(holder) if holder and not is_same_place(holder, holder_of(home)) else ""


def is_held_by(client: Client, run_id: str, holder: str) -> bool:
    """Whether the Lease of a run names `holder`, expired or not. Raises Refused (404 without a Lease), Unreachable."""
    spec = client.get(API, KIND, run_id).get("spec") or {}
    return bool(spec.get("holderIdentity") == holder)


def renewed_at(client: Client, run_id: str) -> float:
    """Returns when the Lease of a run was last renewed, in Unix seconds; 0 if there is no Lease. Raises Refused,
    Unreachable.
    """
    found = client.get_if_exists(API, KIND, run_id) or {}
    return seconds_of((found.get("spec") or {}).get("renewTime"), 0.0)


def fresh_holder(client: Client, run_id: str, now: float) -> str:
    """Returns the supervisor that recently renewed the Lease of a run; empty if none did. `now` is this machine's time.

    The renewal time, from the holder's clock, is compared with the cluster's clock. Raises Refused, Unreachable.
    """
    found = client.get_if_exists(API, KIND, run_id) or {}
    spec = found.get("spec") or {}
    renewed = seconds_of(spec.get("renewTime"), 0.0)
    seconds = float(spec.get("leaseDurationSeconds") or DURATION_SECONDS) + SKEW_SECONDS
    return str(spec.get("holderIdentity") or "") if abs(now + client.ahead - renewed) < seconds else ""
