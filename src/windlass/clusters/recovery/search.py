"""Searches AWS for the resources of a configuration: helpers shared by the finders of all services."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from windlass.clusters.aws import Aws, AwsError, NotThere, aws_errors
from windlass.clusters.tags import OWNER, flat

Values = Mapping[str, Any]
"""Attributes of a resource, planned or from the state; unknown ones are missing or null."""


class Status(enum.Enum):
    """Lifecycle status of a resource."""

    READY = "ready"
    PENDING = "pending"
    """AWS is still creating or changing the resource."""
    GOING = "going"
    """AWS is deleting the resource."""
    GONE = "gone"
    """The resource is deleted, but AWS still lists it: a NAT gateway for an hour."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class FoundResource:
    """A resource that exists in AWS."""

    id: str
    """The id for `terraform import`."""
    status: Status = Status.READY
    name: str = ""
    created: str = ""
    """Creation time as sortable text; empty if AWS does not report it."""
    is_ours: bool = True
    """Whether the resource has the cluster's tag, or is part of a resource with the tag."""
    has_status: bool = False
    """Whether AWS reports a status for the resource. Without a status, READY does not prove that its creation was
    completed."""


class NotKnownYet(Exception):
    """An identifying attribute of the resource depends on another resource that is missing or not imported yet."""


Finder = Callable[["Search", Values], Sequence[FoundResource]]
"""Function that returns the existing resources for planned values; several of them are duplicates. Raises NotKnownYet,
AwsError."""
Lister = Callable[["Search"], Sequence[FoundResource]]
"""Function that returns all resources of a type with the cluster's tag. Raises AwsError."""

_ABSENT: Final = re.compile(r"NotFound|NoSuch|NonExist|NotExist")
"""Matches error codes such as NoSuchLifecycleConfiguration, PolicyNotFound, LifecyclePolicyNotFoundException."""
_PENDING: Final = frozenset({"pending", "creating", "updating", "pendingacceptance", "modifying"})
_GOING: Final = frozenset({"deleting", "pendingdeletion"})
_FAILED: Final = frozenset({"failed", "create_failed", "delete_failed", "misconfigured", "error"})


def status_of(word: str) -> Status:
    """Maps the status word of any AWS service to a Status: `ACTIVE`, `available`, `CREATING`, `Deleting`."""
    folded = word.lower()
    if folded in _PENDING:
        return Status.PENDING
    if folded in _GOING:
        return Status.GOING
    if folded == "deleted":
        return Status.GONE
    return Status.FAILED if folded in _FAILED else Status.READY


class Search:
    """Searches for the resources of one cluster in one account and region."""

    def __init__(self, aws: Aws, cluster: str) -> None:
        self.aws, self.cluster = aws, cluster
        self.unread: set[str] = set()
        """Objects that the credentials may not read, so that their cluster is unknown."""

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """Returns the response of one call; empty if the named object does not exist. Raises AwsError."""
        try:
            with aws_errors(f"find resources of an interrupted command ({service})"):
                found: dict[str, Any] = getattr(self.aws.client(service), operation)(**arguments)
                return found
        except AwsError as error:
            if is_absence(error):
                return {}
            raise

    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> list[Any]:
        """Returns all items of a paginated list; empty if the named object does not exist. Raises AwsError."""
        client = self.aws.client(service)
        if not client.can_paginate(operation):
            return list(self.call(service, operation, **arguments).get(key) or ())
        try:
            with aws_errors(f"find resources of an interrupted command ({service})"):
                pages = client.get_paginator(operation).paginate(**arguments)
                return [one for page in pages for one in page.get(key) or ()]
        except AwsError as error:
            if is_absence(error):
                return []
            raise

    def owns(self, tags: Any) -> bool:
        """Whether tags, in the format of any AWS service, name the cluster."""
        return tag_of(tags, OWNER) == self.cluster


def is_absence(error: AwsError) -> bool:
    """Whether an error means that the requested object does not exist; services use a different code for each kind."""
    return isinstance(error, NotThere) or bool(_ABSENT.search(error.code))


def tag_of(tags: Any, name: str) -> str:
    """Returns the value of a tag in a map or a list of pairs; empty if it is missing."""
    return flat(tags).get(name, "")


def need(values: Values, name: str) -> str:
    """Returns an attribute that identifies the resource. Raises NotKnownYet."""
    found = values.get(name)
    if found in (None, "", []):
        raise NotKnownYet(name)
    return str(found)


def name_of(values: Values) -> str:
    """Returns the `Name` tag of a resource; empty if it has none."""
    return tag_of(values.get("tags_all"), "Name") or tag_of(values.get("tags"), "Name")


def planned_name(values: Values) -> str:
    """Returns the `Name` tag of a resource. Raises NotKnownYet if it has none."""
    if name := name_of(values):
        return name
    raise NotKnownYet("tags.Name")
