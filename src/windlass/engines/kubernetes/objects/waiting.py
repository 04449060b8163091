"""Reasons of containers that wait, as kubelets report them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

ON_THE_WAY: Final = frozenset({"ContainerCreating", "PodInitializing"})
"""Those that are no problem."""
STUCK: Final = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "CrashLoopBackOff",
)
"""Those that do not pass by themselves."""
ALTERNATES: Final = {"ImagePullBackOff": "ErrImagePull"}
"""A reason that takes turns with another, as long as nothing changes."""
_BACK_OFF: Final = re.compile(r'Back-off pulling image ".*?": (\w+): (.*)', re.DOTALL)


def reason_of(waiting: Mapping[str, Any]) -> tuple[str, str]:
    """Reason and message; while a kubelet waits for its next pull, those of the last one."""
    reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "").strip()
    cause = _BACK_OFF.match(message) if reason in ALTERNATES else None
    return (cause[1], cause[2]) if cause else (reason, message)
