"""`init`, `check` and `schema`: what makes a job file and says whether it is right."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from windlass.cli import options
from windlass.cli.render import emit, print_data
from windlass.cli.words import count, painter

if TYPE_CHECKING:
    from windlass.plan.plan import Plan

# The templates of `actions.make` and the names of `cli.schemas`: written again, so that --help loads neither.
TEMPLATES = ("torchrun", "mpi", "plain")
PRINTED = (
    "plan",
    "run",
    "status",
    "ps",
    "cost",
    "events",
    "why",
    "resume",
    "checkpoints",
    "checkpoints-verify",
    "checkpoints-prune",
    "checkpoints-export",
    "stop",
    "cp",
    "rm",
    "init",
    "import",
    "check",
    "doctor",
    "error",
)


@click.command()
@click.argument("script", required=False, metavar="[SCRIPT]", type=click.Path())
@click.option("--script", "named", metavar="PATH", type=click.Path(), hidden=True)
@click.option("--template", type=click.Choice(TEMPLATES), help="Who starts the ranks; default: by what it imports.")
@click.option("--name", help="Name of the job; default: from the script or the folder.")
@click.option("--schema", is_flag=True, help="Write job.schema.json too, and refer to it for editors.")
@click.option("--force", is_flag=True, help="Overwrite a job.yaml that is there.")
@options.output
def init(
    script: str | None, named: str | None, template: Any, name: str | None, schema: bool, force: bool, form: str
) -> int:  # fmt: skip
    """Write a job.yaml for a script of this folder, the likeliest one if none is named.

    The script is read, not run: what it imports says whether torchrun, mpirun or nothing at all starts its ranks.

    \b
    Example:
      windlass init
      windlass init src/train.py --template mpi --name resnet
    """
    from windlass.actions import make
    from windlass.actions.edge import here

    if script and named and script != named:
        raise click.UsageError(f"{script} and --script {named} are two scripts; name one")
    made = make.draft(here(), script=script or named, template=template, name=name, with_schema=schema)
    written = [path.name for path in make.write(made, force=force)]
    said = [f"{' and '.join(written)} written ({made.template}: {made.reason}):", "", *made.text.splitlines(), ""]
    paint = painter(sys.stdout)
    lines = [paint(line, dim=True) if line.startswith("#") else line for line in said]
    data = {"written": written, "template": made.template, "reason": made.reason}
    print_data(data, form, [*lines, f"Next: {paint('windlass check', bold=True)}, then windlass run"])
    return 0


@click.command()
@click.argument("job", required=False, metavar="[JOB | SCRIPT]", type=click.Path())
@click.option("--on", default="local", metavar="TARGET", help="Where it is to run.", show_default=True)
@click.option("--network", is_flag=True, help="Try the cluster's network too, by two pods that are removed again.")
@click.option("--role", is_flag=True, help="Print the role that grants the rights needed there, and exactly these.")
@options.output
def check(job: str | None, on: str, network: bool, role: bool, form: str) -> int:
    """Check a job file and say all that is wrong with it, at once; on a cluster, check the cluster too.

    Nothing is started, but two pods for --network. Ends with 0 where the job could run, and with 2 where it could not.
    On a cluster no job file is needed: one that is named, or is in this folder, is checked as well.

    \b
    Example:
      windlass check
      windlass check jobs/resnet.yaml --on gpu-lab
      windlass check --on gpu-lab --network
      windlass check --on gpu-lab --role | kubectl apply -f -
    """
    from windlass.actions import make
    from windlass.actions.edge import here
    from windlass.actions.jobs import read_job
    from windlass.actions.targets import find_target

    edge = here()
    target = find_target(on, edge)
    if target.kind == "kubernetes":
        from windlass.cli.clustertext import check_cluster, print_role

        return print_role(target, edge) if role else check_cluster(job, target, edge, network=network, form=form)
    if network or role:
        raise click.UsageError(f"--network and --role are for clusters, and target {on} is of kind {target.kind}")
    ready = read_job(job, (), {}, edge)
    plan = make.check(ready, on, edge)
    summary = make.summary_of(plan)
    print_data(summary, form, job_lines(ready.origin, plan))
    return 0 if summary["ok"] else 2


def job_lines(origin: str, plan: Plan) -> list[str]:
    """A checked job for a person."""
    from windlass.cli.plantext import note_lines

    paint = painter(sys.stdout)
    size = f"{count(plan.num_nodes, 'node')} × {count(plan.procs_per_node, 'rank')} on {plan.target}"
    cannot = any(note.blocks for note in plan.notes)
    word = paint("cannot run", "red", bold=True) if cannot else paint("ok", "green", bold=True)
    return [f"{origin}: {word}  {plan.name}: {size}", *note_lines(plan.notes, paint)]


@click.command()
@click.option("--targets", is_flag=True, help="The schema of targets.yaml instead.")
@click.option("--printed-by", type=click.Choice(PRINTED), help="What this command prints with -o json.")
@options.debug
def schema(targets: bool, printed_by: str | None) -> int:
    """Print the JSON Schema of the job file, for editors and for programs that write job files.

    \b
    Example:
      windlass schema > job.schema.json
      windlass schema --printed-by status
    """
    if targets and printed_by:
        raise click.UsageError("--targets and --printed-by are two schemas; ask for one")
    if printed_by:
        from windlass.cli.schemas import SCHEMAS

        found = SCHEMAS[printed_by]
    else:
        from windlass.spec.schema import job_schema, targets_schema

        found = targets_schema() if targets else job_schema()
    emit([json.dumps(found, indent=2)])
    return 0
