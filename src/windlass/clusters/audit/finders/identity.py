"""Finders for IAM: roles, policies, instance profiles and OIDC providers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from windlass.clusters.audit.calls import FinderCalls
from windlass.clusters.audit.finder import GLOBAL, Finder, command, row
from windlass.clusters.audit.report import FoundObject
from windlass.clusters.audit.scope import Owner, Scope
from windlass.clusters.tags import flat

AWS_PATHS: Final = ("/aws-service-role/", "/aws-reserved/")
"""Paths of roles that AWS creates for its services and for single sign-on."""


def _roles(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    def inspect(one: dict[str, Any]) -> Iterator[FoundObject]:
        name = one["RoleName"]
        tags = calls.tags("iam", "list_role_tags", "Tags", RoleName=name)
        if owner := scope.owner(tags, name=name):
            yield row(
                ROLE,
                scope,
                owner,
                name,
                tags=tags,
                region=GLOBAL,
                remedy="detach its policies, then: "
                + command(scope, "iam delete-role --role-name", name, region=False),
            )

    roles = calls.items("iam", "list_roles", "Roles")
    return calls.each((one for one in roles if not one.get("Path", "/").startswith(AWS_PATHS)), inspect)


def _policies(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    def inspect(one: dict[str, Any]) -> Iterator[FoundObject]:
        arn, name = one["Arn"], one["PolicyName"]
        tags = calls.tags("iam", "list_policy_tags", "Tags", PolicyArn=arn)
        if owner := scope.owner(tags, name=name):
            yield row(
                POLICY,
                scope,
                owner,
                arn,
                name=name,
                tags=tags,
                region=GLOBAL,
                detail=f"attached {one.get('AttachmentCount', '?')} times",
                remedy=command(scope, "iam delete-policy --policy-arn", arn, region=False),
            )

    return calls.each(calls.items("iam", "list_policies", "Policies", Scope="Local"), inspect)


def _profiles(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    def inspect(one: dict[str, Any]) -> Iterator[FoundObject]:
        name = one["InstanceProfileName"]
        tags = calls.tags("iam", "list_instance_profile_tags", "Tags", InstanceProfileName=name)
        owner = scope.owner(tags, name=name)
        if (owner is None or not owner.is_certain) and not scope.is_of_another(tags):
            owner = _karpenter_profile(scope, one) or owner
        if owner:
            roles = ", ".join(role["RoleName"] for role in one.get("Roles") or ())
            yield row(
                PROFILE,
                scope,
                owner,
                name,
                tags=tags,
                region=GLOBAL,
                detail=f"of role {roles}" if roles else "without a role",
                remedy="remove its role, then: "
                + command(scope, "iam delete-instance-profile --instance-profile-name", name, region=False),
            )

    return calls.each(calls.items("iam", "list_instance_profiles", "InstanceProfiles"), inspect)


def _karpenter_profile(scope: Scope, one: dict[str, Any]) -> Owner | None:
    """Recognizes an instance profile that Karpenter created for a node class, by its path and name."""
    path, name = one.get("Path", "/"), one["InstanceProfileName"]
    if path.startswith(f"/karpenter/{scope.region}/{scope.name}/"):
        return Owner(f"path {path}, of Karpenter")
    if re.fullmatch(rf"{re.escape(scope.name)}_\d{{6,}}", name):
        return Owner(f"name {name}, of Karpenter")
    return None


def _providers(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    def inspect(one: dict[str, Any]) -> Iterator[FoundObject]:
        arn = one["Arn"]
        owner = Owner("the cluster's OIDC issuer") if scope.issuer and arn.endswith(f"/{scope.issuer}") else None
        about = calls.get("iam", "get_open_id_connect_provider", OpenIDConnectProviderArn=arn)
        tags = flat(about.get("Tags"))
        if owner := owner or scope.owner(tags, name=tags.get("Name", "")):
            words = "iam delete-open-id-connect-provider --open-id-connect-provider-arn"
            yield row(
                PROVIDER,
                scope,
                owner,
                arn,
                tags=tags,
                region=GLOBAL,
                remedy=command(scope, words, arn, region=False),
            )

    return calls.each(calls.items("iam", "list_open_id_connect_providers", "OpenIDConnectProviderList"), inspect)


ROLE: Final = ("iam", "role")
POLICY: Final = ("iam", "policy")
PROFILE: Final = ("iam", "instance profile")
PROVIDER: Final = ("iam", "OIDC provider")

FINDERS: Final = (
    Finder(*ROLE, ("iam:ListRoles", "iam:ListRoleTags"), _roles),
    Finder(*POLICY, ("iam:ListPolicies", "iam:ListPolicyTags"), _policies),
    Finder(*PROFILE, ("iam:ListInstanceProfiles", "iam:ListInstanceProfileTags"), _profiles),
    Finder(*PROVIDER, ("iam:ListOpenIDConnectProviders", "iam:GetOpenIDConnectProvider"), _providers),
)
