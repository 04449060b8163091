"""Decides by the rights in a namespace whether supervisors run in the cluster or on the user's machine. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from windlass.engines.kubernetes.objects.layout import SUPERVISOR_ACCOUNT
from windlass.engines.kubernetes.reading.preflight.rbac import Right

if TYPE_CHECKING:
    from windlass.spec.targets import KubernetesTarget


def decide(
    target: KubernetesTarget,
    namespace: str,
    *,
    has_account: bool | None,
    missing: Collection[str],
    lacking: Collection[str] = (),
) -> tuple[bool, str]:
    """The same by the facts alone: `has_account` is None where it is not known, `missing` are rights of the login,
    `lacking` resources on which the account has not all rights.
    """
    if target.supervisor == "machine":
        return False, f"supervisor: machine of target {target.name}"
    if has_account is None:
        return False, f"this login may not get serviceaccounts in namespace {namespace}"
    if not has_account:
        return False, f"namespace {namespace} has no service account {SUPERVISOR_ACCOUNT}"
    if missing:
        return False, f"this login may not {', '.join(missing)}"
    if lacking:
        return False, lacks(lacking)
    return True, f"namespace {namespace} has the service account {SUPERVISOR_ACCOUNT}"


def lacks(resources: Iterable[str]) -> str:
    """That the service account has not all rights on these resources."""
    return f"service account {SUPERVISOR_ACCOUNT} lacks rights on {', '.join(resources)}"


def lacking_on(wanted: Iterable[Right], granted: Collection[str] | None) -> tuple[str, ...]:
    """The resources on which the service account lacks a right; none where its rights are not known."""
    return () if granted is None else tuple(dict.fromkeys(one.on for one in wanted if str(one) not in granted))


def how_to(target: str, *, has_account: bool | None, lacking: Collection[str] = ()) -> str:
    """What to do to have supervisors run in the cluster."""
    if has_account is False or lacking:
        does = "grants them" if lacking else "creates it"
        return (
            f"windlass target setup {target} {does}; for the platform team: windlass target setup {target} -o manifest"
        )
    return f"windlass check --on {target} --role prints the role that grants these"
