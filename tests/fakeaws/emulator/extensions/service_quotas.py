"""Service Quotas, which ministack lacks. Values are AWS's defaults for new accounts; requests stay open.

Tests set values with `FAKEAWS_QUOTAS`, such as `L-DB2E81BA=64,L-1216C47A=32`. Identity policies apply.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from botocore.validate import ParamValidator
from ministack import app
from ministack.core import iam_actions, router
from ministack.core.responses import AccountRegionScopedDict, get_account_id, get_region
from tests.fakeaws.emulator.extensions.shapes import model_of

QUOTAS = {
    ("ec2", "L-1216C47A"): ("Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", 5.0),
    ("ec2", "L-34B43A08"): ("All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests", 5.0),
    ("ec2", "L-DB2E81BA"): ("Running On-Demand G and VT instances", 0.0),
    ("ec2", "L-3819A6DF"): ("All G and VT Spot Instance Requests", 0.0),
    ("ec2", "L-417A185B"): ("Running On-Demand P instances", 0.0),
    ("ec2", "L-7212CCBC"): ("All P4, P3 and P2 Spot Instance Requests", 0.0),
    ("ec2", "L-C4BD4855"): ("All P5 Spot Instance Requests", 0.0),
    ("ec2", "L-2C3B7624"): ("Running On-Demand Trn instances", 0.0),
    ("ec2", "L-1945791B"): ("Running On-Demand Inf instances", 0.0),
    ("ec2", "L-6E869C2A"): ("Running On-Demand DL instances", 0.0),
    ("ec2", "L-0263D0A3"): ("EC2-VPC Elastic IPs", 5.0),
    ("vpc", "L-F678F1CE"): ("VPCs per Region", 5.0),
}
"""Name and default of each quota, by service and code."""
ONLY_DEFAULT = frozenset({"L-2C3B7624"})
"""Quotas without an account value in GetServiceQuota, like quotas that were never applied in AWS."""


class Refused(Exception):
    """A Service Quotas error: its code and message."""


class ServiceQuotas:
    """The quotas of each account and region."""

    def __init__(self) -> None:
        self.requests = AccountRegionScopedDict()
        texts = [one.split("=") for one in os.environ.get("FAKEAWS_QUOTAS", "").split(",") if one]
        self.set = {code: float(value) for code, value in texts}

    def act(self, operation: str, body: dict[str, Any]) -> dict[str, Any] | None:
        service, code = body.get("ServiceCode", ""), body.get("QuotaCode", "")
        match operation:
            case "ListServiceQuotas" | "ListAWSDefaultServiceQuotas":
                return {"Quotas": [self._quota(*key) for key in QUOTAS if key[0] == service]}
            case "GetServiceQuota":
                if code in ONLY_DEFAULT:
                    raise Refused("NoSuchResourceException", "the quota has no applied value")
                return {"Quota": self._quota(service, code)}
            case "GetAWSDefaultServiceQuota":
                return {"Quota": self._quota(service, code)}
            case "RequestServiceQuotaIncrease":
                return {"RequestedQuota": self._request(service, code, float(body["DesiredValue"]))}
            case "ListRequestedServiceQuotaChangeHistory":
                return {
                    "RequestedQuotas": [one for one in self.requests.values() if service in ("", one["ServiceCode"])]
                }
            case "ListRequestedServiceQuotaChangeHistoryByQuota":
                return {"RequestedQuotas": [one for one in self.requests.values() if one["QuotaCode"] == code]}
        return None

    def _quota(self, service: str, code: str) -> dict[str, Any]:
        if (service, code) not in QUOTAS:
            raise Refused("NoSuchResourceException", f"no quota {code} of {service}")
        name, value = QUOTAS[service, code]
        arn = f"arn:aws:servicequotas:{get_region()}:{get_account_id()}:{service}/{code}"
        return {
            "ServiceCode": service,
            "QuotaCode": code,
            "QuotaName": name,
            "QuotaArn": arn,
            "Unit": "None",
            "Value": self.set.get(code, value),
            "Adjustable": True,
            "GlobalQuota": False,
        }

    def _request(self, service: str, code: str, wanted: float) -> dict[str, Any]:
        quota = self._quota(service, code)
        if wanted <= quota["Value"]:
            raise Refused("IllegalArgumentException", f"{wanted} is not above the quota of {quota['Value']}")
        if any(one["QuotaCode"] == code for one in self.requests.values()):
            raise Refused("ResourceAlreadyExistsException", "only one open request for a quota is allowed")
        made = {
            **{name: quota[name] for name in ("ServiceCode", "QuotaCode", "QuotaName", "QuotaArn", "GlobalQuota")},
            "Id": f"{len(self.requests):032x}",
            "Status": "PENDING",
            "DesiredValue": wanted,
            "Created": time.time(),
        }
        self.requests[code] = made
        return made


def extend() -> None:
    """Serves Service Quotas in addition to ministack's services, with the same identity policies."""
    service = ServiceQuotas()

    async def handle(method: str, path: str, headers: dict[str, str], body: bytes, query: dict[str, Any]) -> Any:
        operation, asked = headers.get("x-amz-target", "").rpartition(".")[2], json.loads(body or b"{}")
        shape = model_of("service-quotas").operation_model(operation).input_shape
        try:
            problems = ParamValidator().validate(asked, shape)
            if problems.has_errors():
                raise Refused("IllegalArgumentException", problems.generate_report())
            answer = service.act(operation, asked)
            if answer is None:
                raise Refused("IllegalArgumentException", f"{operation} is not emulated")
        except Refused as error:
            return _answer(400, {"__type": error.args[0], "Message": error.args[1]})
        return _answer(200, answer)

    app.SERVICE_HANDLERS["servicequotas"] = handle
    router.SERVICE_PATTERNS["servicequotas"] = {
        "target_prefixes": ["ServiceQuotas"],
        "credential_scope": "servicequotas",
    }
    iam_actions.SERVICE_TO_IAM_NAMESPACE["servicequotas"] = "servicequotas"
    _name_quotas()


def _name_quotas() -> None:
    """Adds the ARNs of quotas for policy evaluation, because ministack does not support the service."""
    found = iam_actions.extract_resource_arn

    def extract_resource_arn(service: str, *rest: Any) -> str:
        asked = json.loads(rest[3] or b"{}") if service == "servicequotas" else {}
        if "QuotaCode" not in asked:
            return str(found(service, *rest))
        return f"arn:aws:servicequotas:{rest[5]}:{rest[6]}:{asked.get('ServiceCode', '')}/{asked['QuotaCode']}"

    iam_actions.extract_resource_arn = extract_resource_arn


def _answer(status: int, body: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    return status, {"Content-Type": "application/x-amz-json-1.1"}, json.dumps(body).encode()
