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
    """What `cluster init` asks for."""

    name: str
    region: str
    gpus: tuple[tuple[str, int], ...]
    """Instance types, each with its largest number of nodes."""
    spot: bool
    efs: bool
    public_access: tuple[str, ...] = ()
    """Ranges of addresses that reach the API server over the Internet."""


@dataclass(frozen=True, slots=True)
class WrittenCluster:
    """The cluster file that `cluster init` wrote."""

    path: str


def check(name: str = "training", region: str = "us-east-1", gpus: tuple[tuple[str, int], ...] = ()) -> None:
    """Raises UsageError for a name, a region or GPU pools that cannot be those of a cluster."""
    try:
        text_of(Answers(name, region, gpus, spot=False, efs=False))
    except JobFileError as error:
        problem = error.problems[0]
        raise UsageError(f"{problem.field}: {problem.message}", problem.hint) from error


def text_of(answers: Answers) -> str:
    """The text of a cluster file. Raises JobFileError for an answer that cannot be."""
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
    parse_cluster(text, FILE)  # what we write, we can read
    return text


def pool_name(instance_type: str) -> str:
    """The name of a pool of an instance type: `g5-12xlarge`."""
    return instance_type.replace(".", "-")[:20].rstrip("-")


def path_for(context: Context, *, force: bool) -> Path:
    """Where `init` writes the cluster file. Raises UsageError where one is there already, unless forced."""
    path = context.cwd / FILE
    if path.exists() and not force:
        raise UsageError(f"{path} exists already", "--force overwrites it")
    return path
