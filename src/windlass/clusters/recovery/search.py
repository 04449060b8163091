"""Looks up in AWS what a configuration describes: the tools that the finders of all services share."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from windlass.clusters.aws import Aws, AwsError, NotThere, aws_errors
from windlass.clusters.tags import OWNER, flat

Values = Mapping[str, Any]
"""Attributes of a resource, as planned or as in the state; unknown ones are missing or null."""


class Status(enum.Enum):
    """How far a resource is."""

    READY = "ready"
    PENDING = "pending"
    """AWS still makes or changes it."""
    GOING = "going"
    """AWS deletes it."""
    GONE = "gone"
    """AWS still lists what it has deleted: a NAT gateway for an hour."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Found:
    """A resource that exists."""

    id: str
    """The id for `terraform import`."""
    status: Status = Status.READY
    name: str = ""
    created: str = ""
    """Sorts by time of creation; empty where AWS does not say."""
    is_ours: bool = True
    """Whether it carries the cluster's tag, or is part of something that does."""
    has_status: bool = False
    """Whether AWS reports a status for it: only then READY says that its creation was completed."""


class NotKnownYet(Exception):
    """An attribute that identifies the resource depends on one that does not exist or is not imported yet."""


Finder = Callable[["Search", Values], Sequence[Found]]
"""Returns what exists for the planned values; several are duplicates. Raises NotKnownYet, AwsError."""
Lister = Callable[["Search"], Sequence[Found]]
"""Returns all resources of a type with the cluster's tag. Raises AwsError."""

_ABSENT: Final = re.compile(r"NotFound|NoSuch|NonExist|NotExist")
"""In codes such as NoSuchLifecycleConfiguration, PolicyNotFound, LifecyclePolicyNotFoundException."""
_PENDING: Final = frozenset({"pending", "creating", "updating", "pendingacceptance", "modifying"})
_GOING: Final = frozenset({"deleting", "pendingdeletion"})
_FAILED: Final = frozenset({"failed", "create_failed", "delete_failed", "misconfigured", "error"})


def status_of(word: str) -> Status:
    """The status by the word of any AWS service: `ACTIVE`, `available`, `CREATING`, `Deleting`."""
    folded = word.lower()
    if folded in _PENDING:
        return Status.PENDING
    if folded in _GOING:
        return Status.GOING
    if folded == "deleted":
        return Status.GONE
    return Status.FAILED if folded in _FAILED else Status.READY


class Search:
    """One cluster in one account and region."""

    def __init__(self, aws: Aws, cluster: str) -> None:
        self.aws, self.cluster = aws, cluster

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """The answer of one call; empty if what it names does not exist. Raises AwsError."""
        try:
            with aws_errors(f"look for what an interrupted command has made ({service})"):
                found: dict[str, Any] = getattr(self.aws.client(service), operation)(**arguments)
                return found
        except AwsError as error:
            if is_absence(error):
                return {}
            raise

    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> list[Any]:
        """All items of a list; none if what it names does not exist. Raises AwsError."""
        client = self.aws.client(service)
        if not client.can_paginate(operation):
            return list(self.call(service, operation, **arguments).get(key) or ())
        try:
            with aws_errors(f"look for what an interrupted command has made ({service})"):
                pages = client.get_paginator(operation).paginate(**arguments)
                return [one for page in pages for one in page.get(key) or ()]
        except AwsError as error:
            if is_absence(error):
                return []
            raise

    def owns(self, tags: Any) -> bool:
        """Whether these tags, in any of the forms of AWS's services, name the cluster."""
        return tag_of(tags, OWNER) == self.cluster


def is_absence(error: AwsError) -> bool:
    """Whether a service says that what was asked for does not exist: each part of a resource has a code of its own."""
    return isinstance(error, NotThere) or bool(_ABSENT.search(error.code))


def tag_of(tags: Any, name: str) -> str:
    """The value of a tag in a map or a list of pairs; empty if there is none."""
    return flat(tags).get(name, "")


def need(values: Values, name: str) -> str:
    """An attribute that identifies the resource. Raises NotKnownYet."""
    found = values.get(name)
    if found in (None, "", []):
        raise NotKnownYet(name)
    return str(found)


def name_of(values: Values) -> str:
    """The tag Name of a resource; empty if it has none."""
    return tag_of(values.get("tags_all"), "Name") or tag_of(values.get("tags"), "Name")


def planned_name(values: Values) -> str:
    """The same. Raises NotKnownYet for a resource without one."""
    if name := name_of(values):
        return name
    raise NotKnownYet("tags.Name")
