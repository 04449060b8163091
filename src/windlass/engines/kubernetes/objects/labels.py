"""Builds the labels of all objects: Kubernetes' recommended ones, and labels for run, user, job and attempt. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from windlass import __version__
from windlass.engines.kubernetes.objects import layout

NAME: Final = "app.kubernetes.io/name"
INSTANCE: Final = "app.kubernetes.io/instance"
COMPONENT: Final = "app.kubernetes.io/component"
PART_OF: Final = "app.kubernetes.io/part-of"
VERSION: Final = "app.kubernetes.io/version"
USER: Final = "windlass.dev/user"
HELPER: Final = "windlass.dev/helper"
"""Label with the name of the command or capacity probe that created a temporary object."""
WINDLASS: Final = "windlass"
RUN, CODE, RESULTS, RECORD, DATA = "run", "code", "results", "record", "data"
TRAINING: Final = "training"
SERVER: Final = "server"
SUPERVISOR: Final = "supervisor"
TRANSFER: Final = "transfer"
"""`RUN` to `TRANSFER` are values of the label `app.kubernetes.io/component`."""
MAX_CHARS: Final = 63


def of_run(run_id: str, job: str, user: str, component: str, attempt: int | None = None) -> dict[str, str]:
    """Returns the labels of an object of a run. `job` is the name of the job, `user` the submitting user (empty if
    unknown).
    """
    found = {**_common(run_id, component, job), layout.RUN_LABEL: run_id, layout.JOB_LABEL: job}
    if user := value(user):
        found[USER] = user
    return found if attempt is None else {**found, layout.ATTEMPT_LABEL: str(attempt)}


def like(owner_config_map: Mapping[str, str], component: str, **more: str) -> dict[str, str]:
    """Returns the labels of an object of a run, derived from the labels of the run's owner ConfigMap."""
    return {**owner_config_map, COMPONENT: component, **more}


def of_helper(name: str, component: str, run: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the labels of the temporary objects of a probe or command; `run` has the labels of its run's owner
    ConfigMap, if any.
    """
    its = {key: text for key, text in (run or {}).items() if key not in (layout.ATTEMPT_LABEL, layout.QUEUE_LABEL)}
    return {**_common(name, component, WINDLASS), **its, COMPONENT: component, HELPER: name}


def of_deployment(name: str, user: str) -> dict[str, str]:
    """Returns the labels of an object of a deployment of models. `user` is the name of its owner."""
    found = {**_common(name, SERVER, WINDLASS), layout.DEPLOYMENT_LABEL: name}
    return {**found, USER: value(user)} if value(user) else found


def of_setup(component: str = "rbac") -> dict[str, str]:
    """Returns the labels of objects that belong to no run."""
    return _common(WINDLASS, component, WINDLASS)


def value(text: str) -> str:
    """Converts a text to a valid label value: `ana@example.com` becomes `ana-example.com`."""
    return re.sub(r"[^-._A-Za-z0-9]", "-", text)[:MAX_CHARS].strip("-._")


def _common(instance: str, component: str, part_of: str) -> dict[str, str]:
    return {
        NAME: WINDLASS,
        INSTANCE: instance,
        COMPONENT: component,
        PART_OF: part_of,
        VERSION: value(__version__),
        layout.MANAGED_LABEL: WINDLASS,
    }
