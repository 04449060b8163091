"""What all parts of a target's deployments need: its account, its store, its roles, and calls that are repeated."""

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
"""Seconds between two polls at first, and in the end."""
ANSWER_SECONDS: Final = 60.0
"""Maximum seconds in which a call without an answer is repeated."""


class EndpointAccess:
    """A target as this process reaches it. The roles and the client are determined when first needed, because that may
    ask AWS.
    """

    def __init__(self, target: SageMakerTarget, home: Path, hosting: Hosting | None, clock: Clock) -> None:
        """`home` is the folder of this user's records; without `hosting`, a client for the target's account is
        created.
        """
        self.target, self.home, self.clock, self._given = target, home, clock, hosting

    @functools.cached_property
    def role(self) -> str:
        """ARN of the role with which models run. Raises EngineError."""
        return role_arn(self.target.role, self.target.region)

    @functools.cached_property
    def schedule_role(self) -> str:
        """ARN of the role with which EventBridge Scheduler deletes deployments; empty if the target names none. Raises
        EngineError.
        """
        role = self.target.schedule_role
        return "" if role is None else role_arn(role, self.target.region)

    @functools.cached_property
    def hosting(self) -> Hosting:
        """The client. Raises EngineError."""
        return self._given or Hosting(self.target.region, self.role.split(":")[4])

    def price(self, instance: str, replicas: int) -> float | None:
        """Returns the price of instances per hour; None if the target names none."""
        price = self.target.prices.get(instance)
        return None if price is None else price * replicas

    def pause(self, waited: float) -> None:
        """Waits until the next poll, `waited` seconds after the first one."""
        self.clock.wait(min(POLL_SECONDS, FIRST_POLL_SECONDS + waited / 10))

    def answered(self, call: Callable[[], T]) -> T:
        """Repeats a call until AWS answers; names make each call safe to repeat. Raises Refused, Unavailable."""
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
