"""One package per kind of target, and the registry that finds the engine of a kind by its name."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from windlass.errors import UsageError

if TYPE_CHECKING:
    from windlass.engines.base import Engine

ENGINES: Final = {
    "local": "windlass.engines.local.engine:LocalEngine",
    "kubernetes": "windlass.engines.kubernetes.engine:KubernetesEngine",
    "sagemaker": "windlass.engines.sagemaker.engine:SageMakerEngine",
    "sagemaker-local": "windlass.engines.sagemaker.engine:SageMakerLocalEngine",
    "fake": "windlass.engines.fake.engine:FakeEngine",
}
"""The class of each engine of this package, imported when a target or a record first asks for it."""
TARGETS: Final = {
    "kubernetes": "windlass.engines.kubernetes.target:ClusterRuns",
    "sagemaker": "windlass.engines.sagemaker.target:AccountRuns",
}
"""The class of the runs on a target, whichever machine started them, where it is another: a list of these runs imports
nothing of what plans and supervises them."""
GROUP: Final = "windlass.engines"
"""Entry points of this group, `kind = "package.module:Class"`, add engines of other packages."""


def engine_class(kind: str, needed_by: str = "") -> type[Engine]:
    """The engine of targets of this kind. Raises UsageError where none is installed; it names who needs it."""
    path = ENGINES.get(kind) or _entry_point(kind)
    if path is None:
        raise UsageError(
            f"no engine for targets of kind '{kind}' is installed" + (f"; {needed_by} needs it" if needed_by else ""),
            f"this version has {', '.join(ENGINES)}: upgrade Windlass, or install the package that adds the engine",
        )
    return _imported(path)


def target_class(kind: str, needed_by: str = "") -> type[Engine]:
    """The class to `connect` to a target of this kind with. Raises as `engine_class`."""
    path = TARGETS.get(kind)
    return _imported(path) if path is not None else engine_class(kind, needed_by)


def target_model(kind: str) -> type[Any] | None:
    """The class of targets of this kind in targets.yaml; None for an unknown kind."""
    from windlass.spec.targets import KINDS

    if kind in KINDS:
        return KINDS[kind]
    return engine_class(kind).target_model if _entry_point(kind) else None


def _imported(path: str) -> type[Engine]:
    module, _, name = path.partition(":")
    found: type[Engine] = getattr(importlib.import_module(module), name)
    return found


def _entry_point(kind: str) -> str | None:
    from importlib.metadata import entry_points  # 20 ms, which engines of this package do without

    return next((point.value for point in entry_points(group=GROUP, name=kind)), None)


def added_kinds() -> list[str]:
    """The kinds of targets that other packages add."""
    from importlib.metadata import entry_points

    return sorted(entry_points(group=GROUP).names - ENGINES.keys())
