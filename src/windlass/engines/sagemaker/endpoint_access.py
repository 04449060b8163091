"""Access to a target that all modules of SageMaker deployments share: client, roles, prices, and repeated calls."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from windlass.engines.sagemaker.aws import role_arn
from windlass.engines.sagemaker.hosting import Hosting
from windlass.engines.sagemaker.service import NotLoggedIn, Unavailable
from windlass.runs.clock import Clock
from windlass.spec.targets import SageMakerTarget

T = TypeVar("T")

FIRST_POLL_SECONDS, POLL_SECONDS = 1.0, 10.0
"""Shortest pause between two polls, at first, and longest pause, in seconds."""
ANSWER_SECONDS: Final = 60.0
"""Maximum seconds for which an unanswered call is repeated."""


class EndpointAccess:
    """Access of this process to one target. Roles and client are created on first use, because this may call AWS."""

    def __init__(self, target: SageMakerTarget, home: Path, hosting: Hosting | None, clock: Clock) -> None:
        """`home` is the folder of this user's records; without `hosting`, a client for the target's account is
        created.
        """
        self.target, self.home, self.clock, self._given = target, home, clock, hosting

    @functools.cached_property
    def role(self) -> str:
        """ARN of the role that endpoints assume. Raises EngineError."""
        return role_arn(self.target.role, self.target.region)

    @functools.cached_property
    def schedule_role(self) -> str:
        """ARN of the role with which EventBridge Scheduler deletes deployments; empty if the target does not have one.
        Raises EngineError.
        """
        role = self.target.schedule_role
        return "" if role is None else role_arn(role, self.target.region)

    @functools.cached_property
    def hosting(self) -> Hosting:
        """Client for the target's account. Raises EngineError."""
        return self._given or Hosting(self.target.region, self.role.split(":")[4])

    def price(self, instance: str, replicas: int) -> float | None:
        """Returns the price of instances per hour in the currency of the target; None if the target has no price."""
        price = self.target.prices.get(instance)
        return None if price is None else price * replicas

    def pause(self, waited: float) -> None:
        """Pauses before the next poll. The pause grows with `waited`, the seconds since the first poll."""
        self.clock.wait(min(POLL_SECONDS, FIRST_POLL_SECONDS + waited / 10))

    def answered(self, call: Callable[[], T]) -> T:
        """Repeats a call until AWS answers, for at most ANSWER_SECONDS. Each call may be repeated, because objects have
        fixed names. Raises Refused, Unavailable.
        """
        until = self.clock.time() + ANSWER_SECONDS
        while True:
            try:
                return call()
            except NotLoggedIn:
                raise
            except Unavailable:
                if self.clock.time() >= until:
                    raise
            self.clock.wait(POLL_SECONDS)
