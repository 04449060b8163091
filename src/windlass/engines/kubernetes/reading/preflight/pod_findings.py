"""Derives checks from the results of a probe pod: IAM role, S3 access, claims and image. Pure."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from windlass.engines.checks import Check, Level
from windlass.engines.kubernetes.objects.quantity import duration, seconds_of

Json = Mapping[str, Any]
ACTIONS: Final = {"list": "s3:ListBucket", "write": "s3:PutObject", "read": "s3:GetObject", "delete": "s3:DeleteObject"}
AGENT: Final = "eks-pod-identity-agent"
SLOW_PULL_SECONDS: Final = 180.0


@dataclass(frozen=True, slots=True)
class Association:
    """IAM role that pods are expected to have, and how they get it."""

    service_account: str = "default"
    role_arn: str = ""
    """ARN of the role that the pods should have; empty if any role is accepted."""
    fix: str = ""
    """Fix for pods without the role, such as the command that associates it."""


def role_check(found: Json, wanted: Association, *, needs_role: bool) -> Check:
    """Returns the check of whether a pod has the expected IAM role."""
    arn = str(found.get("arn", ""))
    if not arn:
        level: Level = "fail" if needs_role or wanted.role_arn else "warn"
        fix = wanted.fix or "give the pods a role, or jobs secrets: with keys"
        if found.get("kind") == "unreachable":
            fix = f"do pods reach it? kubectl -n kube-system get pods -l app.kubernetes.io/name={AGENT}"
        return Check("pod role", level, str(found.get("error", "no answer")), fix)
    if wanted.role_arn and role_name(arn) != role_name(wanted.role_arn):
        text = f"pods of service account {wanted.service_account} are {arn}, expected a session of {wanted.role_arn}"
        return Check("pod role", "fail", text, wanted.fix)
    return Check("pod role", "ok", f"{arn}, by {found.get('by')}")


def role_name(arn: str) -> str:
    """Returns the account and name of the role in the ARN of a role or a role session; other ARNs are returned
    unchanged.
    """
    session = re.fullmatch(r"arn:[\w-]+:sts::(\d+):assumed-role/([^/]+)/.+", arn)
    role = re.fullmatch(r"arn:[\w-]+:iam::(\d+):role/(?:.+/)?([^/]+)", arn)
    found = session or role
    return f"{found[1]}/{found[2]}" if found else arn


def ladder_check(rungs: Sequence[Json], bucket: str, prefix: str, who: str) -> Check:
    """Returns the check of S3 access: the failed operations, and the policy statements that `who` lacks."""
    where = f"s3://{bucket}/{prefix}"
    broken = [one for one in rungs if "error" in one]
    well = [str(one["rung"]) for one in rungs if "error" not in one]
    if not broken:
        seconds = sum(float(one["seconds"]) for one in rungs)
        return Check("s3", "ok", f"a pod can {', '.join(well)} in {where} ({1e3 * seconds:.0f} ms)")
    said = "; ".join(f"{one['rung']}: {one['error']}" for one in broken)
    text = f"{said}{'; ' + ', '.join(well) + ' passed' if well else ''}"
    return Check("s3", "fail", text, _ladder_fix(broken, bucket, prefix, who))


def _ladder_fix(broken: Sequence[Json], bucket: str, prefix: str, who: str) -> str:
    kinds = {str(one.get("kind")) for one in broken}
    if "unreachable" in kinds:
        return "does the network of the pods reach S3? a VPC without NAT needs the gateway endpoint of S3"
    if "no-bucket" in kinds:
        return f"make it, or change storage: of the target: aws s3 mb s3://{bucket}"
    if "keys" in kinds:
        return "give the pods a role (see pod role), or jobs secrets: with valid keys"
    denied = [ACTIONS[str(one["rung"])] for one in broken if one.get("kind") == "denied"]
    if not denied:
        return (
            "see the bucket's policy and its versioning; the same by hand: aws s3 cp FILE " + f"s3://{bucket}/{prefix}"
        )
    kms = " (a bucket with a KMS key also needs kms:GenerateDataKey and kms:Decrypt of the key)"
    return f"allow it to {who}: {json.dumps(statements(denied, bucket, prefix))}{kms}"


def statements(actions: Iterable[str], bucket: str, prefix: str) -> list[dict[str, Any]]:
    """Returns the minimal policy statements for these actions in a bucket; object actions are limited to the prefix."""
    wanted, found = list(actions), []
    if ACTIONS["list"] in wanted:
        found.append({"Effect": "Allow", "Action": [ACTIONS["list"]], "Resource": f"arn:aws:s3:::{bucket}"})
    if others := [one for one in wanted if one != ACTIONS["list"]]:
        below = prefix.removesuffix("doctor/")
        found.append({"Effect": "Allow", "Action": others, "Resource": f"arn:aws:s3:::{bucket}/{below}*"})
    return found


def folder_check(claim: str, found: Json) -> Check:
    """Returns the check of whether a claim is writable, with a fix if it is not."""
    name = f"claim {claim}"
    if "error" not in found:
        free = float(found["free_bytes"])
        room = f", {free / 2**30:,.0f} GiB free" if free < 2**50 else ""
        return Check(
            name, "ok", f"a pod can write, read and delete in it ({1e3 * float(found['seconds']):.0f} ms){room}"
        )
    text = (
        f"{found['step']}: {found['error']}; the folder is of {found['owner']}, mode {found['mode']}, and the pod "
        f"runs as {found['user']}"
    )
    return Check(name, "fail", text, _folder_fix(int(found.get("errno") or 0), found))


def _folder_fix(number: int, found: Json) -> str:
    if number == errno.EROFS:
        return "its volume is mounted read-only: see readOnly, mountOptions and access modes of its PersistentVolume"
    if number in (errno.EACCES, errno.EPERM):
        owner = str(found["owner"]).partition(":")[0]
        same = f"user: {owner} of the target" if owner != "0" else "an EFS access point with the user's number"
        return f"{same}, or chown -R {found['user']} of the folder (for NFS on the server)"
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "it is full: remove files, or enlarge it"
    return "see the driver of its volume: kubectl describe pvc"


# -- image pull -------------------------------------------------------------------------------------------------------


def image_check(image: str, node: str, events: Iterable[Json]) -> Check:
    """Returns the check of an image's pull: how long it took, or that the node already had the image."""
    seconds, size = pull(events)
    if seconds is None:
        return Check("image pull", "ok", f"{image} is on node {node} already; another node pulls it first")
    text = f"{image} was pulled in {seconds:.1f} s on node {node}{size}"
    if seconds > SLOW_PULL_SECONDS:
        return Check(
            "image pull",
            "warn",
            text,
            "keep it in ECR of the same region, and see that disks of nodes have "
            "600 MB/s; a smaller image starts sooner",
        )
    return Check("image pull", "ok", text)


def pull(events: Iterable[Json]) -> tuple[float | None, str]:
    """Returns the seconds that the pull of an image took, and its size as text; None if the node already had the
    image.
    """
    begun: float | None = None
    for event in sorted(events, key=_at):
        message = str(event.get("message", ""))
        if event.get("reason") == "Pulling":
            begun = _at(event)
        elif event.get("reason") == "Pulled" and "already present" not in message:
            sized = re.search(r"Image size: (\d+) bytes", message)
            size = f" ({int(sized[1]) / 1e9:.1f} GB)" if sized else ""
            pulled = re.search(r"\bin ([\dhmsµu.]+)", message)
            if pulled and (seconds := duration(pulled[1])) is not None:
                return seconds, size
            return (_at(event) - begun, size) if begun is not None else (None, size)
    return None, ""


def _at(event: Json) -> float:
    first = event.get("firstTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp")
    return seconds_of(first, 0.0)
