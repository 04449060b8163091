"""`init`, `check` and `schema`: write a job file, check it, print its JSON Schema."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from windlass.cli import options
from windlass.cli.formatting import painter, size_of_run
from windlass.cli.render import emit, print_data, to_yaml

if TYPE_CHECKING:
    from windlass.engines.base import Engine
    from windlass.engines.checks import Check, CheckReport
    from windlass.plan.plan import Plan
    from windlass.runs.context import Context

TEMPLATES = ("torchrun", "tensorflow", "jax", "mpi", "plain")
"""Template names, as in `actions.init`; copied here so that --help need not import that module."""


@click.command()
@click.argument("script", required=False, metavar="[SCRIPT]", type=click.Path())
@click.option("--script", "named", metavar="PATH", type=click.Path(), hidden=True)
@click.option(
    "--template", type=click.Choice(TEMPLATES), help="Launcher of the ranks; default: from the script's imports."
)
@click.option("--name", help="Name of the job; default: from the script or the folder.")
@click.option("--schema", is_flag=True, help="Write job.schema.json too, and refer to it for editors.")
@click.option("--force", is_flag=True, help="Overwrite an existing job.yaml.")
@options.output
def init(
    script: str | None, named: str | None, template: Any, name: str | None, schema: bool, force: bool, form: str
) -> int:
    """Write a job.yaml for a script of this folder (default: the most likely training script).

    The script is read, not run: its imports determine the launcher of its ranks, or that it is a single process.

    \b
    Example:
      windlass init
      windlass init src/train.py --template mpi --name resnet
    """
    from windlass.actions import init as make
    from windlass.runs.context import here
    from windlass.views.job_files import WrittenJob

    if script and named and script != named:
        raise click.UsageError(f"{script} and --script {named} are two scripts; name one")
    made = make.draft(here(), script=script or named, template=template, name=name, with_schema=schema)
    written = [path.name for path in make.write(made, force=force)]
    text = [f"{' and '.join(written)} written ({made.template}: {made.reason}):", "", *made.text.splitlines(), ""]
    paint = painter(sys.stdout)
    lines = [paint(line, dim=True) if line.startswith("#") else line for line in text]
    print_data(
        WrittenJob(tuple(written), made.template, made.reason),
        form,
        [*lines, f"Next: {paint('windlass check', bold=True)}, then windlass run"],
    )
    return 0


@click.command()
@click.argument("job", required=False, metavar="[JOB | SCRIPT]", type=click.Path())
@click.option(
    "--on",
    default="local",
    metavar="TARGET",
    shell_complete=options.complete_targets,
    help="Target to check for.",
    show_default=True,
)
@click.option("--network", is_flag=True, help="Test the network of the cluster too, with two temporary pods.")
@click.option("--role", is_flag=True, help="Print the least permissions that runs need: an RBAC Role, or IAM policies.")
@options.output
def check(job: str | None, on: str, network: bool, role: bool, form: str) -> int:
    """Check a job file and report all its problems at once; with --on, check the cluster too.

    Starts nothing, except two pods for --network. Exits with 0 if the job could run, and with 2 if not. With --on, no
    job file is needed; a given job file, or one in this folder, is checked as well.

    \b
    Example:
      windlass check
      windlass check jobs/resnet.yaml --on gpu-lab
      windlass check --on gpu-lab --network
      windlass check --on gpu-lab --role | kubectl apply -f -
    """
    from windlass.actions import init as make
    from windlass.actions.jobs import read_job
    from windlass.actions.targets import find_target
    from windlass.engines import engine_class
    from windlass.runs.context import here
    from windlass.views.targets import checked_of

    context = here()
    target = find_target(on, context)
    engine = engine_class(target.kind)
    if role:
        click.echo("---\n".join(to_yaml(document) for document in engine.role(target, context)), nl=False)
        return 0
    if engine.is_remote:
        return _check_target(job, engine, target, context, network=network, form=form)
    if network:
        raise engine.unsupported("check --network")
    ready = read_job(job, (), {}, context)
    plan = make.check(ready, target, context)
    report = checked_of(plan)
    print_data(report, form, job_lines(ready.origin, plan))
    return 0 if report.ok else 2


def _check_target(
    job: str | None, engine: type[Engine], target: Any, context: Context, *, network: bool, form: str
) -> int:
    """Checks a target, and a job for it if one is given."""
    from windlass.actions import init as make
    from windlass.actions.jobs import JOB_FILES, read_job
    from windlass.cli.doctor import check_lines, sum_of
    from windlass.cli.interrupts import tidy
    from windlass.views.targets import checked_of

    is_job = job is not None or any((context.cwd / name).is_file() for name in JOB_FILES)
    # a bad job file is reported before the target is contacted
    ready = read_job(job, (), {}, context) if is_job else None
    paint = painter(sys.stdout)
    checks: list[Check] = []

    def show(report: CheckReport) -> CheckReport:
        for check in list(report.checks)[len(checks) :]:
            checks.append(check)
            if form == "table":
                emit(check_lines(check, paint))
        return report

    def is_ok() -> bool:
        return all(check.level != "fail" for check in checks)

    report = show(engine.check(target, context))
    if network and is_ok():
        with tidy():
            report = show(engine.check_network(report, target, context, lambda text: click.echo(f"{text} …", err=True)))
    plan = make.check(ready, target, context) if ready is not None and is_ok() else None
    summary = None if plan is None else checked_of(plan)
    lines = ["", sum_of(checks)]
    if ready is not None and plan is not None:
        lines += ["", *job_lines(ready.origin, plan)]
    data = {"ok": is_ok(), **report.facts, "checks": checks, "job": summary}
    print_data(data, form, lines)
    return 0 if is_ok() and (summary is None or summary.ok) else 2


def job_lines(origin: str, plan: Plan) -> list[str]:
    """Returns the output lines for a checked job."""
    from windlass.cli.plantext import note_lines

    paint = painter(sys.stdout)
    size = f"{size_of_run(plan.num_nodes, plan.procs_per_node)} on {plan.target}"
    cannot = any(note.blocks for note in plan.notes)
    word = paint("cannot run", "red", bold=True) if cannot else paint("ok", "green", bold=True)
    return [f"{origin}: {word}  {plan.name}: {size}", *note_lines(plan.notes, paint)]


@click.command()
@click.option("--targets", is_flag=True, help="Print the schema of targets.yaml instead.")
@click.option("--cluster", is_flag=True, help="Print the schema of cluster.yaml instead.")
@click.option("--printed-by", metavar="COMMAND", help="Print the schema of this command's -o json output instead.")
@options.debug
def schema(targets: bool, cluster: bool, printed_by: str | None) -> int:
    """Print the JSON Schema of the job file, for editors and for programs that write job files.

    \b
    Example:
      windlass schema > job.schema.json
      windlass schema --printed-by status
    """
    if sum((targets, cluster, printed_by is not None)) > 1:
        raise click.UsageError("--targets, --cluster and --printed-by are different schemas; ask for one")
    if printed_by is not None:
        from windlass.views.schema import PRINTED, schema_of

        name = "-".join(printed_by.split()).replace("checkpoints-list", "checkpoints")
        if name not in PRINTED:
            raise click.UsageError(f"--printed-by {printed_by}: there are schemas of {', '.join(PRINTED)}")
        found = schema_of(name)
    else:
        from windlass.spec.schema import cluster_schema, job_schema, targets_schema

        found = targets_schema() if targets else cluster_schema() if cluster else job_schema()
    emit([json.dumps(found, indent=2)])
    return 0
