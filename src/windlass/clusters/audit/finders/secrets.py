"""Finders for secrets (Secrets Manager) and parameters (Systems Manager)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from windlass.clusters.audit.calls import FinderCalls
from windlass.clusters.audit.finder import Finder, command, row
from windlass.clusters.audit.report import FoundObject, PriceKey
from windlass.clusters.audit.scope import Scope
from windlass.clusters.tags import flat


def _secrets(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    for one in calls.items("secretsmanager", "list_secrets", "SecretList"):
        name, tags = one["Name"], flat(one.get("Tags"))
        owner = scope.owner(tags, name=name.lstrip("/"))
        if owner and not one.get("DeletedDate"):
            yield row(
                SECRET,
                scope,
                owner,
                one["ARN"],
                name=name,
                tags=tags,
                prices=[PriceKey("secretsmanager", "month", "", 1.0)],
                remedy=command(scope, "secretsmanager delete-secret --secret-id", one["ARN"]),
            )


def _parameters(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    """Yields parameters; standard ones are free, advanced ones bill."""

    def inspect(one: dict[str, Any]) -> Iterator[FoundObject]:
        name = one["Name"]
        tags = calls.tags("ssm", "list_tags_for_resource", "TagList", ResourceType="Parameter", ResourceId=name)
        if owner := scope.owner(tags, name=name.lstrip("/")):
            is_free = one.get("Tier", "Standard") == "Standard"
            yield row(
                PARAMETER,
                scope,
                owner,
                name,
                tags=tags,
                detail=one.get("Tier", ""),
                prices=[] if is_free else [PriceKey("ssm", "month", "advanced", 1.0)],
                remedy=command(scope, "ssm delete-parameter --name", name),
            )

    return calls.each(calls.items("ssm", "describe_parameters", "Parameters"), inspect)


SECRET: Final = ("secretsmanager", "secret")
PARAMETER: Final = ("ssm", "parameter")

FINDERS: Final = (
    Finder(*SECRET, ("secretsmanager:ListSecrets",), _secrets),
    Finder(*PARAMETER, ("ssm:DescribeParameters", "ssm:ListTagsForResource"), _parameters),
)
