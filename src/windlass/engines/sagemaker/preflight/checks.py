"""Checks an account before a run and suggests a fix for each problem. Nothing is started or changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.checks import Check, Level
from windlass.engines.sagemaker.preflight import policies
from windlass.engines.sagemaker.service import Refused
from windlass.errors import EngineError

if TYPE_CHECKING:
    from windlass.engines.sagemaker.preflight.account import Account
    from windlass.spec.targets import SageMakerTarget

SHOWN: Final = 4
NO_ROLE: Final = "NoSuchEntity"
Result = tuple[Level, str, str]
"""Level, finding and fix of a check."""


def checks(target: SageMakerTarget, account: Account) -> Iterator[Check]:
    """Runs all checks one after the other; stops after the first if there is no login."""
    try:
        number, login = account.identity()
    except EngineError as error:
        yield Check("login", "fail", error.message, error.hint)
        return
    yield Check("login", "ok", f"{login} in account {number}")
    looks: tuple[tuple[str, Callable[[], Result]], ...] = (
        ("role", lambda: _role(target, account)),
        ("rights of role", lambda: _rights_of_role(target, account, number)),
        ("rights of login", lambda: _rights_of_login(target, account, number, login)),
        ("storage", lambda: _bucket(target, account)),
        ("image", lambda: _image(target, account)),
        *((name, look) for name, look in _quotas(target, account)),
        *([("schedule role", lambda: _schedule_role(target, account, number))] if target.schedule_role else []),
    )
    for name, look in looks:
        try:
            yield Check(name, *look())
        except Refused as error:
            fix = (
                "create the role first"
                if error.code == NO_ROLE
                else "grant this login the permission to check it, or try a run"
            )
            yield Check(name, "warn", f"not known: {error.message}", fix)
        except EngineError as error:
            yield Check(name, "warn", f"not known: {error.message}", error.hint)


def _role(target: SageMakerTarget, account: Account) -> Result:
    try:
        arn, trusted = account.role(target.role)
    except Refused as error:
        if error.code != NO_ROLE:
            raise
        return "fail", f"there is no role {target.role}", f"correct role: in target {target.name}, or create it"
    if _trusts(trusted):
        return "ok", f"{arn} can be assumed by SageMaker", ""
    return (
        "fail",
        f"{arn} does not trust SageMaker",
        f"add {policies.SERVICE} to its trust policy: windlass check --on {target.name} --role",
    )


def _schedule_role(target: SageMakerTarget, account: Account, number: str) -> Result:
    """Checks the role with which EventBridge Scheduler deletes deployments."""
    assert target.schedule_role is not None
    arn, trusted = account.role(target.schedule_role)
    if not _trusts(trusted, policies.SCHEDULER):
        hint = f"add {policies.SCHEDULER} to its trust policy: windlass check --on {target.name} --role"
        return "fail", f"{arn} does not trust EventBridge Scheduler", hint
    wanted = policies.requests(policies.schedule_policy(target, number))
    return _rights(target, account.denied(arn, wanted, policies.context(target)), "all permissions to end deployments")


def _trusts(document: Mapping[str, Any], service: str = policies.SERVICE) -> bool:
    """Whether a trust policy allows a service to assume the role. Conditions and Deny statements are not evaluated."""
    for one in _listed(document.get("Statement")):
        principal = one.get("Principal")
        services = _listed(principal.get("Service")) if isinstance(principal, dict) else _listed(principal)
        may_assume = {"sts:AssumeRole", "sts:*", "*"} & set(_listed(one.get("Action")))
        if one.get("Effect") == "Allow" and may_assume and {service, "*"} & set(services):
            return True
    return False


def _rights_of_role(target: SageMakerTarget, account: Account, number: str) -> Result:
    arn, _ = account.role(target.role)
    wanted = policies.requests(policies.role_policy(target, number))
    return _rights(target, account.denied(arn, wanted, policies.context(target)))


def _rights_of_login(target: SageMakerTarget, account: Account, number: str, login: str) -> Result:
    principal = login
    if ":assumed-role/" in login:
        principal, _ = account.role(login.split("/")[1])
    elif login.endswith(":root"):
        return "warn", "the login is the account's root user, which has all permissions", "use a role or a user instead"
    role, _ = account.role(target.role)
    wanted = policies.requests(policies.user_policy(target, number, role))
    return _rights(target, account.denied(principal, wanted, policies.context(target)))


def _rights(target: SageMakerTarget, denied: list[str], granted: str = "all permissions for runs") -> Result:
    if not denied:
        return "ok", granted, ""
    more = f" and {len(denied) - SHOWN} more" if len(denied) > SHOWN else ""
    return (
        "fail",
        f"missing: {', '.join(denied[:SHOWN])}{more}",
        f"windlass check --on {target.name} --role prints the policy that grants them",
    )


def _bucket(target: SageMakerTarget, account: Account) -> Result:
    bucket = target.storage.removeprefix("s3://").partition("/")[0]
    region = account.bucket_region(bucket)
    if not region:
        return "fail", f"there is no bucket {bucket}", f"aws s3 mb s3://{bucket} --region {target.region}"
    if region != target.region:
        return (
            "fail",
            f"{bucket} is in {region}, and training jobs are in {target.region}",
            "name a bucket of the same region in storage:",
        )
    return "ok", f"{bucket} is in {region}", ""


def _image(target: SageMakerTarget, account: Account) -> Result:
    if target.image is None:
        return "warn", "the target names no image, so each job must", f"set image: in target {target.name}"
    found = policies.IMAGE.fullmatch(target.image)
    if found is None:
        level: Level = "ok" if target.subnets else "fail"
        return (
            level,
            f"{target.image} is not in ECR: SageMaker pulls it only from inside a VPC",
            "" if target.subnets else "copy it into ECR, or set subnets: and security_groups:",
        )
    if found["region"] != target.region:
        return (
            "fail",
            f"{target.image} is in {found['region']}, and SageMaker pulls from {target.region}",
            "copy it into a repository of that region",
        )
    which = {"imageDigest": found["digest"]} if found["digest"] else {"imageTag": found["tag"] or "latest"}
    if account.has_image(found["account"], found["region"], found["name"], which):
        return "ok", f"{target.image} is there", ""
    return "fail", f"there is no image {target.image}", "correct image:, or push it"


def _quotas(target: SageMakerTarget, account: Account) -> Iterator[tuple[str, Callable[[], Result]]]:
    """Yields checks of the instance type's quotas: on demand, spot and warm pools."""
    if target.instance is None:
        yield "instance type", lambda: ("warn", "the target names none, so each job must", "set instance:")
        return
    found: dict[str, float] = {}

    def value(use: str) -> float | None:
        if not found:
            found.update(account.quotas())
        return found.get(f"{target.instance} for {use}")

    def usual() -> Result:
        number = value("training job usage")
        if number is None:
            return (
                "fail",
                f"{target.region} offers no {target.instance} for training",
                "take another instance type or region",
            )
        return _enough(number, target, "fail")

    yield "quota", usual
    for name, use in (
        ("quota of spot", "spot training job usage"),
        ("quota of pools", "training warm pool usage"),
    ):

        def special(use: str = use) -> Result:
            number = value(use)
            return ("warn", "none for this type", "") if number is None else _enough(number, target, "warn")

        yield name, special


def _enough(number: float, target: SageMakerTarget, otherwise: Level) -> Result:
    if number > 0:
        return "ok", f"{number:g} × {target.instance} at once", ""
    fix = "ask for more: Service Quotas, Amazon SageMaker, in the console"
    return otherwise, f"0 × {target.instance}: no job may use it", fix


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
