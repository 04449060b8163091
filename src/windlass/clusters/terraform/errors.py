"""Converts diagnostics of Terraform and its providers into one error with a cause and a hint."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from windlass.clusters.terraform.events import Diagnostic
from windlass.engines.aws_codes import LOGIN_HINT
from windlass.errors import EngineError


class TerraformError(EngineError):
    """A Terraform command failed; `diagnostics` are its errors, `log` is its output."""

    def __init__(
        self, message: str, hint: str = "", *, diagnostics: Sequence[Diagnostic] = (), log: Path | None = None
    ) -> None:
        super().__init__(message, hint)
        self.diagnostics, self.log = tuple(diagnostics), log


class TerraformFailed(TerraformError):
    """A Terraform command failed; the message contains its errors."""


class StalePlan(TerraformError):
    """The state has changed since the plan was made."""


class Interrupted(TerraformError):
    """A stop was requested: Terraform exited cleanly before it had finished, or other work of the command was ended."""

    exit_code = 130


@dataclass(frozen=True, slots=True)
class LockInfo:
    """Information about the holder of a state lock."""

    id: str
    path: str
    operation: str
    who: str
    """Holder as `user@host`."""
    created: str
    """Creation time: `2026-11-25 01:12:27.628984248 +0000 UTC`."""

    @property
    def host(self) -> str:
        """Host name of the holder."""
        return self.who.rpartition("@")[2]

    @property
    def doing(self) -> str:
        """Operation of the holder: `apply` for OperationTypeApply."""
        return self.operation.removeprefix("OperationType").lower() or "another command"


class StateLocked(TerraformError):
    """Another Terraform command holds the state lock."""

    def __init__(self, lock: LockInfo, hint: str = "", **rest: object) -> None:
        since = re.sub(r"\.\d+ \+0000 UTC$", " UTC", lock.created)
        message = f"the state {lock.path} is locked by {lock.who} since {since} ({lock.doing})"
        default = "wait for that command; if it no longer runs: windlass cluster up, or down, with --break-lock"
        super().__init__(message, hint or default, **rest)  # type: ignore[arg-type]
        self.lock = lock


_LOCK_LINE: Final = re.compile(r"^\s*(ID|Path|Operation|Who|Created):[ \t]*(.*?)\s*$", re.MULTILINE)


def lock_of(diagnostics: Sequence[Diagnostic]) -> LockInfo | None:
    """Returns the lock that a command found held; None if it failed for another reason."""
    for one in diagnostics:
        if one.is_error and "Error acquiring the state lock" in one.summary and "Lock Info:" in one.detail:
            found = dict(_LOCK_LINE.findall(one.detail.partition("Lock Info:")[2]))
            return LockInfo(*(found.get(name, "") for name in ("ID", "Path", "Operation", "Who", "Created")))
    return None


ALLOW: Final = "allow the action to the identity that runs Windlass; `windlass cluster policy` prints what it needs"
_RULES: Final = (
    (r"LocalState not locked", "the lock is held by a terraform that runs on this machine: wait for it, or end it"),
    (
        r"Unsupported state file format",
        "restore the state, or rebuild it from AWS: windlass cluster up --recover",
    ),
    (
        r"No valid credential sources|NoCredentialProviders|failed to refresh cached credentials|no EC2 IMDS role"
        r"|get credentials:|ExpiredToken|RequestExpired|InvalidClientTokenId|UnrecognizedClient|InvalidAccessKeyId"
        r"|SignatureDoesNotMatch|AuthFailure|SSO (session|token) .*expired|InvalidGrantException"
        r"|failed to get shared config profile",
        LOGIN_HINT,
    ),
    (
        r"AccessDenied|UnauthorizedOperation|is not authorized to perform|AuthorizationError|StatusCode: 403"
        r"|Unable to access object .*: Forbidden",
        ALLOW,
    ),
    (
        r"LimitExceeded|QuotaExceeded|ServiceQuota|VcpuLimit|TooManyBuckets|MaxSpotInstanceCount|[Qq]uota",
        "ask for a higher quota (windlass doctor --on CLUSTER --request), or free what is not used",
    ),
    (
        r"InsufficientInstanceCapacity|InsufficientCapacity|UnsupportedAvailabilityZone"
        r"|not supported in your requested Availability Zone|InsufficientFreeAddresses",
        "choose other zones or instance types in cluster.yaml, or try again later",
    ),
    (
        r"AlreadyExists|EntityAlreadyExists|BucketAlreadyOwnedByYou|already exists|already in use"
        r"|InvalidPermission\.Duplicate|AlreadyAssociated|QueueAlreadyExists|\.Duplicate",
        "a resource of this name exists and is not in the state: `windlass cluster up --recover` imports what belongs "
        "to this cluster; else choose another name",
    ),
    (
        r"DependencyViolation|DeleteConflict|BucketNotEmpty|RepositoryNotEmpty|ResourceInUse|has dependencies|InUse",
        "a resource created outside Terraform still uses it; `windlass cluster audit NAME` lists what is left",
    ),
    (r"Throttl|RequestLimitExceeded|TooManyRequests|SlowDown", "try again in a few minutes"),
    (
        r"no such host|connection refused|i/o timeout|connection reset|TLS handshake"
        r"|exceeded maximum number of attempts|context deadline exceeded",
        "check the network, the region, and AWS's health page; then run the command again",
    ),
    (
        r"requested bucket from \"[^\"]*\", actual location",
        "name the region of that bucket in the cluster file: state: {bucket: …, region: …}",
    ),
    (
        r"S3 bucket \"[^\"]*\" does not exist",
        "create the bucket for the state, or keep the state in the working folder",
    ),
    (
        r"NoSuchBucket|NoSuchEntity|ResourceNotFound|NotFoundException|\.NotFound",
        "a resource needed by the configuration does not exist, or no longer exists",
    ),
)
_API_ERROR: Final = re.compile(
    r"(?:api error|RequestID: [\w-]*,) (?!api error|HostID|request send)(\w[\w.]*): (.*)", re.DOTALL
)
_BLOB: Final = re.compile(r"\s*Encoded authorization failure message: \S+")
"""Matches AWS's encoded reason for a denial: a thousand characters for `aws sts decode-authorization-message`."""
_NAMED_ACTION: Final = re.compile(r"(?:not authorized to perform|perform):? ([a-z0-9-]+:\w+)")
_OPERATION: Final = re.compile(r"operation error ([\w ]+): (\w+)")
HALTED: Final = frozenset({"execution halted", "operation canceled"})
"""Diagnostic summaries of a Terraform process that was asked to stop."""
LONGEST: Final = 500
"""Maximum characters per failure in a message; the log is complete."""
SHOWN: Final = 3
"""Maximum number of failures of one command in a message; the log is complete."""


def failure(command: str, diagnostics: Sequence[Diagnostic], log: Path, last_line: str = "") -> TerraformError:
    """Builds the error of a failed Terraform command; the first failure determines the hint."""
    errors = [one for one in diagnostics if one.is_error and one.summary not in HALTED]
    if (lock := lock_of(errors)) is not None:
        return StateLocked(lock, diagnostics=errors, log=log)
    if any(
        "Saved plan is stale" in one.summary or "plan file can no longer be applied" in one.detail for one in errors
    ):
        message = "the saved plan is stale: the state has changed since the plan was made; nothing was applied"
        return StalePlan(message, "plan again and read what changed", diagnostics=errors, log=log)
    if not errors:
        detail = f": {last_line}" if last_line else " and printed no error"
        hint = hint_of(Diagnostic("error", last_line)) or f"see {log}"
        return TerraformFailed(f"terraform {command} failed{detail}", hint, log=log)
    hint = hint_of(errors[0])
    lines = [_line(one) for one in errors[:SHOWN]]
    more = f"\n… and {len(errors) - SHOWN} more" if len(errors) > SHOWN else ""
    text = "\n".join(lines) if len(lines) > 1 else lines[0]
    head = f"terraform {command} failed: " if len(lines) == 1 else f"terraform {command} failed:\n"
    hint = f"{hint}; log: {log}" if hint else f"see {log}"
    return TerraformFailed(head + text + more, hint, diagnostics=errors, log=log)


def hint_of(one: Diagnostic) -> str:
    """Returns a hint for a failure; empty if only the log can help."""
    hint = next((hint for pattern, hint in _RULES if re.search(pattern, f"{one.summary}\n{one.detail}")), "")
    return f"allow {action}" if hint == ALLOW and (action := denied(one)) else hint


def denied(one: Diagnostic) -> str:
    """Returns the denied IAM action, such as `eks:CreateAddon`; empty if the message has none."""
    text = f"{one.summary}\n{one.detail}"
    if named := _NAMED_ACTION.search(text):
        return named[1]
    if "Unable to access object" in text:  # S3 refuses access to a remote state without naming the action
        return "s3:GetObject"
    operation = _OPERATION.search(text)
    return f"{operation[1].replace(' ', '').lower()}:{operation[2]}" if operation else ""


def _line(one: Diagnostic) -> str:
    """Formats one failure: the resource, the provider's operation, and the AWS message without request ids."""
    text = one.summary if _API_ERROR.search(one.summary) or not one.detail else f"{one.summary}: {one.detail}"
    if found := _API_ERROR.search(text):
        doing = re.split(r": operation error ", text[: found.start()])[0].strip(": \n")
        text = f"{doing}: {found[2].strip()} ({found[1]})"
    text = " ".join(_BLOB.sub("", text).split())
    address = "" if one.address.startswith("provider[") else one.address
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]} …"
    where = " in ".join(part for part in (address, one.where) if part)
    return f"{where}: {text}" if where else text
