"""A user of an emulated account with given policies, and `windlass cluster` run as that user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from tests.clusters.policies.clusters import ACCOUNT
from tests.fakeaws.emulator import Emulator

from windlass.clusters.policies import Document, Purpose, policies
from windlass.spec.cluster import Cluster

USER: Final = "platform"
CALLS: Final = "calls.jsonl"
"""Log of the emulator's authorization decisions, in the folder of the test."""
ALWAYS: Final = frozenset({"sts:GetCallerIdentity", "iam:GetUser"})
"""Actions that need no policy. GetCallerIdentity is always allowed. The provider calls GetUser only if AWS's own checks
are skipped, as with an emulator, and ignores the response."""

OF_DEPLOYERS: Final = frozenset({"sagemaker:ListEndpointConfigs"})
"""Actions that `down` tries and can do without: deployments are listed with the rights of users who deploy, and without
those the removal refuses the endpoints that use the role of the cluster."""


class LimitedUser:
    """A user without permissions until policies are attached."""

    def __init__(self, aws: Emulator, folder: Path, terraform: Mapping[str, str]) -> None:
        self._aws, self.folder = aws, folder
        iam = aws.client("iam")
        iam.create_user(UserName=USER)
        key = iam.create_access_key(UserName=USER)["AccessKey"]
        self.key = str(key["AccessKeyId"])
        self.environ = {
            **terraform,
            **aws.environ,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": str(key["SecretAccessKey"]),
            "HOME": str(folder),
            "XDG_DATA_HOME": str(folder / "data"),
            "PWD": str(folder),
        }

    def attach(self, documents: Iterable[Document]) -> None:
        """Creates managed policies from documents, and attaches them in place of all earlier ones."""
        iam = self._aws.client("iam")
        for one in iam.list_attached_user_policies(UserName=USER)["AttachedPolicies"]:
            iam.detach_user_policy(UserName=USER, PolicyArn=one["PolicyArn"])
            iam.delete_policy(PolicyArn=one["PolicyArn"])
        for document in documents:
            text = json.dumps(document.document, separators=(",", ":"))
            arn = iam.create_policy(PolicyName=document.name, PolicyDocument=text)["Policy"]["Arn"]
            iam.attach_user_policy(UserName=USER, PolicyArn=arn)

    def attach_for(self, cluster: Cluster, *purposes: Purpose) -> None:
        """Attaches the policies that `windlass cluster policy` prints."""
        self.attach([one for purpose in purposes for one in policies(cluster, ACCOUNT, purpose)])

    def windlass(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `windlass` in the folder."""
        return subprocess.run(
            [sys.executable, "-m", "windlass", *arguments],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )

    def calls(self, since: int = 0) -> list[tuple[str, bool]]:
        """Returns the checked actions of this user, each with whether it was denied, without the first `since`."""
        path = self.folder / CALLS
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        own = [(str(one["action"]), bool(one["denied"])) for one in lines if one["key"] == self.key]
        return own[since:]


def emulated_environ(folder: Path) -> dict[str, str]:
    """Returns environment variables that make an emulator log its decisions."""
    return {"FAKEAWS_CALLS": os.fspath(folder / CALLS)}
