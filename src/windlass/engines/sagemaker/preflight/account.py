"""Queries an AWS account before a run with boto3: identity, role, permissions, quotas, image, bucket."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any, Final
from urllib.parse import unquote

from botocore.session import Session

from windlass.engines.sagemaker.aws import RETRIES, checked_call
from windlass.engines.sagemaker.service import Refused

MOST_ACTIONS: Final = 100
NO_BUCKET: Final = ("404", "NoSuchBucket")


def named(resource: str) -> str:
    """Returns an example of a resource pattern for a policy simulation; `*` is returned unchanged."""
    return resource if resource == "*" else resource.replace("*", "windlass")


class Account:
    """One account in one region. Methods raise Refused, Unavailable."""

    def __init__(self, region: str) -> None:
        self._session, self._region = Session(), region

    def identity(self) -> tuple[str, str]:
        """Returns the account number and the ARN of the login."""
        found = checked_call(lambda: self._client("sts").get_caller_identity())
        return str(found["Account"]), str(found["Arn"])

    def role(self, name: str) -> tuple[str, Mapping[str, Any]]:
        """Returns the ARN of a role and its trust policy; `name` may be an ARN."""
        short = name.rpartition("/")[2]
        found = checked_call(lambda: self._client("iam").get_role(RoleName=short)["Role"])
        document = found.get("AssumeRolePolicyDocument") or {}
        return str(found["Arn"]), json.loads(unquote(document)) if isinstance(document, str) else document

    def denied(self, principal: str, requests: Iterable[tuple[str, str]], context: Mapping[str, str]) -> list[str]:
        """Simulates requests of a user or role, and returns the denied ones as `ACTION on RESOURCE`.

        `requests` are pairs of action and resource; `context` maps condition keys to their values.
        """
        entries = [
            {"ContextKeyName": name, "ContextKeyValues": [value], "ContextKeyType": "string"}
            for name, value in context.items()
        ]
        client = self._client("iam")
        refused: list[str] = []
        for resource, group in groupby(sorted(requests, key=itemgetter(1)), key=itemgetter(1)):
            asked = [action for action, _ in group][:MOST_ACTIONS]
            found = checked_call(
                lambda asked=asked, resource=resource: client.simulate_principal_policy(  # type: ignore[misc]
                    PolicySourceArn=principal,
                    ActionNames=asked,
                    ResourceArns=[named(resource)],
                    ContextEntries=entries,
                )
            )
            decisions = found["EvaluationResults"]
            refused += [
                f"{one['EvalActionName']} on {resource}" for one in decisions if one["EvalDecision"] != "allowed"
            ]
        return refused

    def quotas(self) -> dict[str, float]:
        """Returns the quotas of SageMaker by name: those of the account, or else the defaults of AWS."""
        client = self._client("service-quotas")
        found: dict[str, float] = {}
        for operation in ("list_aws_default_service_quotas", "list_service_quotas"):
            pages = client.get_paginator(operation)
            for one in checked_call(
                lambda pages=pages: [  # type: ignore[misc]
                    quota for page in pages.paginate(ServiceCode="sagemaker") for quota in page["Quotas"]
                ]
            ):
                found[str(one["QuotaName"])] = float(one.get("Value", 0.0))
        return found

    def has_image(self, account: str, region: str, repository: str, which: Mapping[str, str]) -> bool:
        """Whether a repository of ECR contains an image; `which` is its tag or its digest."""
        client = self._client("ecr", region)
        try:
            checked_call(
                lambda: client.describe_images(registryId=account, repositoryName=repository, imageIds=[which])
            )
        except Refused as error:
            if error.code in ("ImageNotFoundException", "RepositoryNotFoundException"):
                return False
            raise
        return True

    def bucket_region(self, bucket: str) -> str:
        """Returns the region of a bucket; empty if the bucket does not exist."""
        try:
            found = checked_call(lambda: self._client("s3").head_bucket(Bucket=bucket))
        except Refused as error:
            if error.code in NO_BUCKET:
                return ""
            raise
        headers = found["ResponseMetadata"]["HTTPHeaders"]
        return str(found.get("BucketRegion") or headers.get("x-amz-bucket-region") or "us-east-1")

    def _client(self, service: str, region: str | None = None) -> Any:
        where = region or self._region
        return checked_call(lambda: self._session.create_client(service, region_name=where, config=RETRIES))
