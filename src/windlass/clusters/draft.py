"""Writes a cluster file from a few answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from windlass.clusters.find import FILE
from windlass.errors import JobFileError, UsageError
from windlass.runs.context import Context

HEADER: Final = "# An EKS cluster for training. All fields: docs/reference/cluster-file.md\n"


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers to the questions of `cluster init`."""

    name: str
    region: str
    gpus: tuple[tuple[str, int], ...]
    """Instance types, each with its maximum number of nodes."""
    spot: bool
    efs: bool
    public_access: tuple[str, ...] = ()
    """CIDR ranges that may reach the API server over the Internet."""


@dataclass(frozen=True, slots=True)
class WrittenCluster:
    """The cluster file that `cluster init` wrote."""

    path: str


def check(name: str = "training", region: str = "us-east-1", gpus: tuple[tuple[str, int], ...] = ()) -> None:
    """Raises UsageError for an invalid name, region or list of GPU pools."""
    try:
        text_of(Answers(name, region, gpus, spot=False, efs=False))
    except JobFileError as error:
        problem = error.problems[0]
        raise UsageError(f"{problem.field}: {problem.message}", problem.hint) from error


def text_of(answers: Answers) -> str:
    """Returns the text of a cluster file. Raises JobFileError for an invalid answer."""
    from windlass.spec.parse import parse_cluster
    from windlass.spec.yamlwriter import block_lines

    capacity = {"capacity": "spot"} if answers.spot else {}
    pools = [
        {"name": pool_name(instance), "instances": [instance], **capacity, "max": most}
        for instance, most in answers.gpus
    ]
    mapping: dict[str, Any] = {"name": answers.name, "region": answers.region}
    if answers.public_access:
        mapping["network"] = {"public_access": list(answers.public_access)}
    if pools:
        mapping["gpus"] = pools
    if answers.efs:
        mapping["storage"] = {"efs": True}
    text = HEADER + "\n".join([*block_lines(mapping), ""])
    parse_cluster(text, FILE)  # raises JobFileError for an invalid answer
    return text


def pool_name(instance_type: str) -> str:
    """Returns the pool name for an instance type: `g5-12xlarge`."""
    return instance_type.replace(".", "-")[:20].rstrip("-")


def path_for(context: Context, *, force: bool) -> Path:
    """Returns the path where `init` writes the cluster file. Raises UsageError if the file exists, unless forced."""
    path = context.cwd / FILE
    if path.exists() and not force:
        raise UsageError(f"{path} exists already", "--force overwrites it")
    return path
