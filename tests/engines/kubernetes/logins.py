"""Logins without files and plugins, for tests of the Kubernetes client."""

from __future__ import annotations

from collections.abc import Callable

from tests.helpers.clock import FakeClock

from windlass.engines.kubernetes.access.kubeconfig import Context, read_context
from windlass.engines.kubernetes.access.login import Credentials, Login
from windlass.runs.clock import Clock


class FakeLogin(Login):
    """The login of a context whose credentials a function returns."""

    def __init__(
        self, name: str, kubeconfig: str, credentials: Callable[[], Credentials], clock: Clock | None = None
    ) -> None:
        self._make_credentials = credentials
        super().__init__(lambda: read_context(name, kubeconfig), clock)

    def _log_in(self, context: Context) -> Credentials:
        return self._make_credentials()


class LeapingClock(FakeClock):
    """Passes by some seconds each time its monotonic time is read."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def monotonic(self) -> float:
        self.now += self._seconds
        return self.now
