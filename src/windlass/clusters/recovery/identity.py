"""Finds existing IAM roles and policies and KMS keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from windlass.clusters.aws import AccessDenied
from windlass.clusters.recovery.search import (
    Finder,
    FoundResource,
    Lister,
    Search,
    Status,
    Values,
    name_of,
    need,
    tag_of,
)


def _role(search: Search, values: Values) -> Sequence[FoundResource]:
    found = _role_named(search, need(values, "name"))
    return [FoundResource(found["RoleName"], is_ours=search.owns(found.get("Tags")))] if found else []


def _role_named(search: Search, name: str) -> dict[str, Any]:
    found: dict[str, Any] = search.call("iam", "get_role", RoleName=name).get("Role") or {}
    return found


def _role_policy(search: Search, values: Values) -> Sequence[FoundResource]:
    role, name = need(values, "role"), need(values, "name")
    owner = _role_named(search, role)
    if not owner or not search.call("iam", "get_role_policy", RoleName=role, PolicyName=name):
        return []
    return [FoundResource(f"{role}:{name}", is_ours=search.owns(owner.get("Tags")))]


def _role_policy_attachment(search: Search, values: Values) -> Sequence[FoundResource]:
    role, arn = need(values, "role"), need(values, "policy_arn")
    owner = _role_named(search, role)
    attached = search.pages("iam", "list_attached_role_policies", "AttachedPolicies", RoleName=role) if owner else []
    is_ours = search.owns(owner.get("Tags"))
    return [FoundResource(f"{role}/{arn}", is_ours=is_ours) for one in attached if one["PolicyArn"] == arn]


def _policy(search: Search, values: Values) -> Sequence[FoundResource]:
    name = need(values, "name")
    for one in search.pages("iam", "list_policies", "Policies", Scope="Local"):
        if one["PolicyName"] == name:
            tags = search.call("iam", "list_policy_tags", PolicyArn=one["Arn"]).get("Tags")
            return [FoundResource(one["Arn"], is_ours=search.owns(tags))]
    return []


def _instance_profile(search: Search, values: Values) -> Sequence[FoundResource]:
    name = need(values, "name")
    found = search.call("iam", "get_instance_profile", InstanceProfileName=name).get("InstanceProfile")
    return [FoundResource(name, is_ours=search.owns(found.get("Tags")))] if found else []


def _openid_connect_provider(search: Search, values: Values) -> Sequence[FoundResource]:
    host = need(values, "url").removeprefix("https://")
    providers = search.call("iam", "list_open_id_connect_providers").get("OpenIDConnectProviderList") or ()
    arns = [one["Arn"] for one in providers if one["Arn"].endswith(f"oidc-provider/{host}")]
    about = {arn: search.call("iam", "get_open_id_connect_provider", OpenIDConnectProviderArn=arn) for arn in arns}
    return [FoundResource(arn, is_ours=search.owns(one.get("Tags"))) for arn, one in about.items()]


def _keys(search: Search) -> Sequence[FoundResource]:
    """Returns customer keys with the cluster's tag. The list of keys has no tags, so each key is queried.

    A key whose policy denies its tags is reported in `search.unread`: the policy of a cluster's key allows them.
    Raises AccessDenied if the tags of no key can be read.
    """
    found = []
    tags_of: dict[str, Any] = {}
    denied: dict[str, AccessDenied] = {}
    for key in search.pages("kms", "list_keys", "Keys"):
        id = key["KeyId"]
        try:
            tags_of[id] = search.call("kms", "list_resource_tags", KeyId=id).get("Tags")
        except AccessDenied as error:
            denied[id] = error
    if denied and not tags_of:
        raise next(iter(denied.values()))
    search.unread |= {f"the KMS key {id}, whose tags cannot be read" for id in denied}
    for id, tags in tags_of.items():
        if search.owns(tags):
            about = search.call("kms", "describe_key", KeyId=id).get("KeyMetadata") or {}
            status = Status.GOING if about.get("KeyState") == "PendingDeletion" else Status.READY
            created = str(about.get("CreationDate") or "")
            found.append(FoundResource(id, status, tag_of(tags, "Name"), created))
    return found


def _key(search: Search, values: Values) -> Sequence[FoundResource]:
    """Returns the key for planned values. Keys pending deletion are skipped: they do not bill and are not the planned
    key.
    """
    name = name_of(values)
    return [one for one in _keys(search) if one.name == name and one.status is not Status.GOING]


def _alias(search: Search, values: Values) -> Sequence[FoundResource]:
    name = need(values, "name")
    for one in search.pages("kms", "list_aliases", "Aliases"):
        if one["AliasName"] == name:
            tags = search.call("kms", "list_resource_tags", KeyId=one["TargetKeyId"]).get("Tags")
            return [FoundResource(name, is_ours=search.owns(tags))]
    return []


FINDERS: Final[Mapping[str, Finder]] = {
    "aws_iam_role": _role,
    "aws_iam_role_policy": _role_policy,
    "aws_iam_role_policy_attachment": _role_policy_attachment,
    "aws_iam_policy": _policy,
    "aws_iam_instance_profile": _instance_profile,
    "aws_iam_openid_connect_provider": _openid_connect_provider,
    "aws_kms_key": _key,
    "aws_kms_alias": _alias,
}
LISTERS: Final[Mapping[str, Lister]] = {"aws_kms_key": _keys}
