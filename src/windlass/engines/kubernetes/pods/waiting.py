"""Reasons of containers that wait, as kubelets report them."""

from __future__ import annotations

from typing import Final

ON_THE_WAY: Final = frozenset({"ContainerCreating", "PodInitializing"})
"""Those that are no problem."""
STUCK: Final = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError",
                "CreateContainerError", "RunContainerError", "CrashLoopBackOff")  # fmt: skip
"""Those that do not pass by themselves."""
