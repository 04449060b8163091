"""What `check` prints of a cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from windlass.cli.doctor import check_lines, sum_of
from windlass.cli.hands import tidy
from windlass.cli.render import emit, print_data, to_yaml
from windlass.cli.words import painter

if TYPE_CHECKING:
    from windlass.actions.edge import Edge
    from windlass.spec.targets import KubernetesTarget


def print_role(target: KubernetesTarget, edge: Edge) -> int:
    """Print the role and its binding as YAML."""
    from windlass.actions.clusters import role

    click.echo("---\n".join(to_yaml(document) for document in role(target, edge)), nl=False)
    return 0


def check_cluster(job: str | None, target: KubernetesTarget, edge: Edge, *, network: bool, form: str) -> int:
    """Check a cluster, and a job for it where there is one."""
    from windlass.actions import clusters, make
    from windlass.actions.jobs import JOB_FILES, read_job
    from windlass.cli.make import job_lines

    paint = painter(sys.stdout)
    is_job = job is not None or any(Path(edge.cwd / name).is_file() for name in JOB_FILES)
    ready = read_job(job, (), {}, edge) if is_job else None  # a bad job file is told before anybody waits
    report = clusters.look(target, edge)
    if form == "table":
        emit(line for check in report.checks for line in check_lines(check, paint))
    if network and report.ok:
        before = len(report.checks)
        with tidy():
            report = clusters.try_network(report, target, edge, lambda text: click.echo(f"{text} …", err=True))
        if form == "table":
            emit(line for check in report.checks[before:] for line in check_lines(check, paint))
    plan = make.check(ready, target.name, edge) if ready is not None and report.ok else None
    summary = None if plan is None else make.summary_of(plan)
    lines = ["", sum_of(report.checks)]
    if ready is not None and plan is not None:
        lines += ["", *job_lines(ready.origin, plan)]
    print_data({**report.to_json(), "job": summary}, form, lines)
    return 0 if report.ok and (summary is None or summary["ok"]) else 2
