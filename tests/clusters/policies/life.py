"""Life cycle of a cluster as a limited user, in phases; run by hand, it records the calls of each phase in
recorded.json.

python -m tests.clusters.policies.life FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.clusters.policies.clusters import cluster
from tests.clusters.policies.limited import ALWAYS, OF_DEPLOYERS, LimitedUser, emulated_environ
from tests.fakeaws.emulator import emulated_aws, terraform_environ

from windlass.clusters.policies import Purpose
from windlass.clusters.terraform.driver import UNFINISHED

RECORDED: Final = Path(__file__).with_name("recorded.json")
FILE: Final[dict[str, Any]] = {
    "name": "vision",
    "region": "us-east-1",
    "kubernetes": "1.34",
    "network": {"public_access": ["203.0.113.0/24"]},
    "access": {
        "admins": ["arn:aws:iam::123456789012:role/platform"],
        "users": ["arn:aws:iam::123456789012:role/research"],
    },
    "gpus": [
        {"name": "h100", "instances": ["p5.48xlarge"], "provision": "node-group"},
        {"name": "a10g", "instances": ["g5.12xlarge"], "provision": "node-group", "capacity": "spot"},
    ],
    "storage": {"efs": True},
    "sagemaker": True,
    "budget": {"limit": 1000, "email": "someone@example.com"},
    "tags": {"owner": "platform"},
}
"""Cluster with every option except FSx, which provider 5.100 needs ten minutes to destroy, and S3 Files, which is not
emulated."""
CHANGED: Final[dict[str, Any]] = {
    **FILE,
    "kubernetes": "1.35",
    "network": {"nat": "per-zone"},
    "access": {"admins": ["arn:aws:iam::123456789012:role/research"], "users": []},
    "gpus": [{**FILE["gpus"][0], "max": 8, "disk": "500GiB"}, {**FILE["gpus"][1], "labels": {"team": "vision"}}],
    "storage": {"efs": {"throughput": "bursting"}},
    "budget": {"limit": 2000, "email": "someone@example.com"},
    "log_days": 30,
    "namespace": "research",
    "tags": {"team": "vision"},
}
"""The same cluster with every change that Terraform makes in place."""


def life(user: LimitedUser, root_s3: Any) -> Iterator[tuple[str, set[str], str]]:
    """Yields each phase: its name, the actions called, and the error, which is empty for success."""
    (user.folder / "cluster.yaml").write_text(json.dumps(FILE))
    steps: list[tuple[str, list[str]]] = [
        ("up", ["up", "--yes", "--no-components"]),
        ("status", ["status", "vision"]),
        ("change", ["up", "--yes", "--no-components"]),
        ("recover", ["up", "--yes", "--no-components"]),
        ("down", ["down", "vision", "--yes", "--force", "--delete-bucket"]),
        ("audit", ["audit", "vision"]),
    ]
    for phase, arguments in steps:
        if phase == "change":
            (user.folder / "cluster.yaml").write_text(json.dumps(CHANGED))
        if phase == "recover":
            lose(user.folder / "data" / "windlass" / "clusters" / "vision")
        if phase == "down":
            root_s3.put_object(Bucket="windlass-vision-123456789012", Key="result", Body=b"1")
        before = len(user.calls())
        done = user.windlass("cluster", *arguments)
        calls = user.calls(before)
        denied = {action for action, is_denied in calls if is_denied} - ALWAYS - OF_DEPLOYERS
        is_well = done.returncode == 0 or phase == "status"  # no API server is available for status
        wrong = "" if is_well else f"{done.stdout[-1500:]}{done.stderr[-2500:]}"
        wrong += f" denied: {sorted(denied)}" if denied else ""
        yield phase, {action for action, _ in calls} - ALWAYS - OF_DEPLOYERS, wrong


LOST: Final = {
    "aws_s3_bucket",
    "aws_sqs_queue",
    "aws_cloudwatch_log_group",
    "aws_iam_role_policy",
    "aws_eks_pod_identity_association",
}
"""Resource types that are missing in the state after the kill."""


def lose(folder: Path) -> None:
    """Changes a folder as a kill would: the command is unfinished, and the state lacks the latest resources."""
    (folder / UNFINISHED).write_text("{}")
    path = folder / "terraform.tfstate"
    state = json.loads(path.read_text())
    state["resources"] = [one for one in state["resources"] if one["type"] not in LOST]
    state["serial"] += 1
    path.write_text(json.dumps(state))


def recorded() -> dict[str, set[str]]:
    """Returns the recorded actions of each phase."""
    return {phase: set(actions) for phase, actions in json.loads(RECORDED.read_text()).items()}


def main(folder: Path) -> None:
    """Records the actions of all phases."""
    folder.mkdir(parents=True)
    with emulated_aws(folder / "aws", auth=True, environ=emulated_environ(folder)) as aws:
        user = LimitedUser(aws, folder, terraform_environ(folder / "terraform"))
        user.attach_for(cluster(json.dumps(FILE)), Purpose.UP, Purpose.AUDIT)
        found = {}
        began = time.monotonic()
        for phase, actions, wrong in life(user, aws.client("s3")):
            found[phase] = sorted(actions)
            print(f"{time.monotonic() - began:.0f} s", phase, len(actions), wrong, flush=True)
    RECORDED.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
