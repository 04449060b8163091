"""AWS calls of the finders: paginated, shared between finders, and limited to each finder's declared operations."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from typing import Any, Final, TypeVar

from windlass.clusters.audit.report import Unknown
from windlass.clusters.aws import Aws, AwsError, NoEndpoint, NotThere, aws_errors, iam_action
from windlass.clusters.tags import flat
from windlass.errors import WindlassError

T = TypeVar("T")
R = TypeVar("R")

PAGE_SIZES: Final = {
    ("ec2", "describe_volumes"): 500,
    ("ec2", "describe_snapshots"): 1000,
    ("ec2", "describe_instances"): 500,
    ("ec2", "describe_network_interfaces"): 500,
    ("ec2", "describe_launch_templates"): 200,
    ("ec2", "describe_security_groups"): 500,
    ("ec2", "describe_nat_gateways"): 500,
    ("ec2", "describe_vpcs"): 500,
    ("ec2", "describe_vpc_endpoints"): 500,
    ("sqs", "list_queues"): 1000,
    ("s3", "list_buckets"): 1000,
}
"""Page sizes. EC2 rejects an unbounded listing in a large account; SQS and S3 truncate it silently."""


class AuditCalls:
    """Shared listings and threads for all AWS calls of one audit. Thread-safe."""

    def __init__(self, aws: Aws, details: Executor) -> None:
        self.aws = aws
        self.details = details
        """Thread pool for calls about single objects. A finder must not run in it, because it would wait for itself."""
        self._lock = threading.Lock()
        self._listings: dict[tuple[Any, ...], Listing] = {}

    def listing(self, key: tuple[Any, ...]) -> Listing:
        """Returns the listing with this key, which is still unread at the first request."""
        with self._lock:
            return self._listings.setdefault(key, Listing())


class Listing:
    """Items of one paginated listing, and the error that ended it early."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_read = False
        self.items: list[Any] = []
        self.error: AwsError | None = None


class FinderCalls:
    """AWS calls of one finder."""

    def __init__(self, audit_calls: AuditCalls, service: str, kind: str, declared: Iterable[str]) -> None:
        self._audit, self._service, self._kind = audit_calls, service, kind
        self._declared = frozenset(declared)
        self._failed: dict[tuple[str, str], AwsError] = {}
        self._lock = threading.Lock()

    def items(self, service: str, operation: str, key: str, **parameters: Any) -> Iterator[Any]:
        """Yields the items under `key` of every page. The listing is read once for all finders.

        If a page fails, raises AwsError after the items of the earlier pages.
        """
        self._method(service, operation)
        listing = self._audit.listing((service, operation, key, repr(sorted(parameters.items()))))
        with listing.lock:
            if not listing.is_read:
                self._read(listing, service, operation, key, parameters)
        yield from listing.items
        if listing.error is not None:
            raise listing.error

    def get(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Returns the response of one call. Raises NotThere, AwsError."""
        method, action = self._method(service, operation)
        with aws_errors(f"look for any {self._kind}", action):
            answer: dict[str, Any] = method(**parameters)
        return answer

    def tags(self, service: str, operation: str, key: str, **parameters: Any) -> dict[str, str]:
        """Returns the tags of one object, from all pages. Raises NotThere, AwsError."""
        client, action = self._client(service, operation)
        found: dict[str, str] = {}
        for page in _pages(client, operation, parameters, action, self._kind):
            found |= flat(page.get(key))
        return found

    def each(self, items: Iterable[T], inspect: Callable[[T], Iterable[R]]) -> Iterator[R]:
        """Calls `inspect` on every item in parallel, and yields the results in the order of the items.

        Items that were deleted in the meantime are skipped; items whose lookup fails are recorded as unknown. If
        iterating `items` fails, the error is raised after the items before it have been processed.
        """
        started, failed = [], None
        try:
            for item in items:
                started.append(self._audit.details.submit(lambda one: list(inspect(one)), item))
        except AwsError as error:
            failed = error
        for future in started:
            try:
                yield from future.result()
            except NotThere:
                continue
            except AwsError as error:
                self.record_failure(error)
        if failed is not None:
            raise failed

    def record_failure(self, error: AwsError) -> None:
        """Records a failed query."""
        with self._lock:
            self._failed.setdefault((error.action, error.code), error)

    @property
    def unknown(self) -> list[Unknown]:
        """Failed queries; equal failures share one row."""
        return [Unknown(self._kind, error.action, error.message, error.hint) for error in self._failed.values()]

    def is_absent(self, error: AwsError, service: str = "") -> bool:
        """Whether a call failed because the region does not offer the service (default: the finder's service)."""
        return isinstance(error, NoEndpoint) and not self._audit.aws.offers(service or self._service)

    def _read(self, listing: Listing, service: str, operation: str, key: str, parameters: dict[str, Any]) -> None:
        client, action = self._client(service, operation)
        try:
            for page in _pages(client, operation, parameters, action, self._kind, service):
                listing.items += page.get(key) or []
        except AwsError as error:
            listing.error = error
        listing.is_read = True

    def _client(self, service: str, operation: str) -> tuple[Any, str]:
        client = self._audit.aws.client(service)
        name = client.meta.method_to_api_mapping[operation]
        if f"{service}:{name}" not in self._declared:  # the audit's IAM policy lacks undeclared operations
            raise WindlassError(f"internal error: the finder of {self._kind} does not declare {service}:{name}")
        return client, iam_action(service, name)

    def _method(self, service: str, operation: str) -> tuple[Callable[..., Any], str]:
        client, action = self._client(service, operation)
        return getattr(client, operation), action


def _pages(
    client: Any, operation: str, parameters: dict[str, Any], action: str, kind: str, service: str = ""
) -> Iterator[dict[str, Any]]:
    with aws_errors(f"look for any {kind}", action):
        if not client.can_paginate(operation):
            yield getattr(client, operation)(**parameters)
            return
        size = PAGE_SIZES.get((service, operation))
        config = {"PageSize": size} if size else {}
        yield from client.get_paginator(operation).paginate(**parameters, PaginationConfig=config)
