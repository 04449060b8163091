"""Values that engines return for runs that another program creates: Kubernetes objects, and requests of SageMaker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windlass.plan.notes import Note


@dataclass(frozen=True, slots=True)
class Upload:
    """Files that must be in a store before another program creates the job."""

    address: str
    """Address of the folder in the store, with a trailing slash."""
    files: Mapping[str, bytes]
    """Contents by path relative to `address`."""


@dataclass(frozen=True, slots=True)
class Manifests:
    """The Kubernetes objects of a plan, in the order in which they must be created."""

    run_id: str
    namespace: str
    objects: tuple[Mapping[str, Any], ...]
    kinds: tuple[str, ...]
    """The kinds of `objects` in the form that `kubectl delete` accepts, owner objects first."""
    notes: tuple[Note, ...]
    """Functions of Windlass that a run created from these objects alone does not have."""
    head: tuple[str, ...] = ()
    """Comment lines for the head of the file; empty for the standard ones."""
    upload: Upload | None = None
    """Files that must be in the store first; None if there are none."""


@dataclass(frozen=True, slots=True)
class WrittenRequest:
    """The CreateTrainingJob request of a run, to be sent by another program."""

    run_id: str
    body: Mapping[str, Any]
    upload: Upload
    notes: tuple[Note, ...]
    """Notes on features of Windlass that are missing if another program sends the request."""
