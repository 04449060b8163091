"""One package per target kind, and the registry that finds the engine of a kind by its name."""

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
"""Import path of each built-in engine, imported at first use."""
TARGETS: Final = {
    "kubernetes": "windlass.engines.kubernetes.target:ClusterRuns",
    "sagemaker": "windlass.engines.sagemaker.target:AccountRuns",
}
"""Import path of the engine for all runs on a target, whichever machine started them. Kinds that are not listed use
ENGINES. The modules are separate because listing runs must not import the code that plans and supervises them."""
GROUP: Final = "windlass.engines"
"""Entry point group for engines of other packages: `kind = "package.module:Class"`."""


def engine_class(kind: str, needed_by: str = "") -> type[Engine]:
    """Returns the engine class for targets of this kind. Raises UsageError if none is installed, with `needed_by` as
    reason.
    """
    path = ENGINES.get(kind) or _entry_point(kind)
    if path is None:
        raise UsageError(
            f"no engine for targets of kind '{kind}' is installed" + (f"; {needed_by} needs it" if needed_by else ""),
            f"this version has {', '.join(ENGINES)}: upgrade Windlass, or install the package that adds the engine",
        )
    return _imported(path)


def target_class(kind: str, needed_by: str = "") -> type[Engine]:
    """Returns the class whose `connect` gives access to a target of this kind. Raises as `engine_class`."""
    path = TARGETS.get(kind)
    return _imported(path) if path is not None else engine_class(kind, needed_by)


def target_model(kind: str) -> type[Any] | None:
    """Returns the model of targets of this kind in targets.yaml; None for an unknown kind."""
    from windlass.spec.targets import KINDS

    if kind in KINDS:
        return KINDS[kind]
    return engine_class(kind).target_model if _entry_point(kind) else None


def _imported(path: str) -> type[Engine]:
    module, _, name = path.partition(":")
    found: type[Engine] = getattr(importlib.import_module(module), name)
    return found


def _entry_point(kind: str) -> str | None:
    from importlib.metadata import entry_points  # imported late: it takes 20 ms, and built-in engines do not need it

    return next((point.value for point in entry_points(group=GROUP, name=kind)), None)


def added_kinds() -> list[str]:
    """Returns the target kinds that other packages add."""
    from importlib.metadata import entry_points

    return sorted(entry_points(group=GROUP).names - ENGINES.keys())
