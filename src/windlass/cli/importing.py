"""`import`: converts a manifest of another system to a job file."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from windlass.cli import options
from windlass.cli.formatting import Paint, count, painter
from windlass.cli.render import emit, print_data

if TYPE_CHECKING:
    from windlass.importers.convert import Format
    from windlass.importers.source import UnmappedField


@click.command("import")
@click.argument("file", metavar="FILE", type=click.Path())
@click.option("--torchx", is_flag=True, help="FILE is a TorchX AppDef, as JSON or YAML.")
@click.option("--sky", is_flag=True, help="FILE is a SkyPilot task.")
@click.option("--to", metavar="PATH|-", help="The job file to write, or - for standard output.  [default: job.yaml]")
@click.option(
    "--document", metavar="NAME", help="The job to read if the file contains several: its name, or KIND/NAME."
)
@click.option("--name", help="Name of the job; default: the manifest's.")
@click.option("--force", is_flag=True, help="Overwrite an existing job file.")
@options.output
def import_job(
    file: str, torchx: bool, sky: bool, to: str | None, document: str | None, name: str | None, force: bool, form: str
) -> int:
    """Convert a manifest to a job file, and list every field that has no equivalent, with what to do instead.

    FILE, or - for standard input, is YAML or JSON: a PyTorchJob, TFJob, JAXJob, XGBoostJob, MPIJob (all versions),
    TrainJob, JobSet, Job or ElasticJob, optionally with the other objects that it uses; or a SageMaker training job,
    as printed by describe-training-job, or the request that creates it. Starts nothing and contacts no cluster.

    \b
    Example:
      windlass import pytorchjob.yaml
      kubectl get trainjob llama -o yaml | windlass import - --to -
      windlass import training-job.json
      windlass import --sky task.yaml --to jobs/task.yaml
    """
    from windlass.actions.importing import STREAM, read_foreign, write_job
    from windlass.actions.jobs import JOB_FILES
    from windlass.importers.source import STDIN
    from windlass.runs.context import here
    from windlass.views.job_files import ImportedJob

    if torchx and sky:
        raise click.UsageError("--torchx and --sky are two formats; name one")
    context = here()
    kind: Format = "torchx" if torchx else "sky" if sky else "kubernetes"
    made = read_foreign(file, context, form=kind, name=name, document=document)
    written = () if to == STREAM else (to or JOB_FILES[0],)
    if written:
        write_job(made, to, context, force=force)
    if form == "table":
        out, err = painter(sys.stdout), painter(sys.stderr)
        job_argument = "" if not written or written[0] == JOB_FILES[0] else f" {shlex.quote(written[0])}"
        emit(_file_lines(made.text, written, made.kind, job_argument, out))
        sys.stdout.flush()
        emit(_target_lines(made.target, err), sys.stderr)
        emit(unmapped_lines(made.unmapped, STDIN if file == STREAM else file, err), sys.stderr)
        return 0
    job = made.job.model_dump(mode="json", exclude_defaults=True)
    print_data(ImportedJob(written, made.kind, job, made.text, made.unmapped, made.target), form, "")
    return 0


def _file_lines(text: str, written: Sequence[str], kind: str, job: str, paint: Paint) -> list[str]:
    if not written:
        return text.splitlines()
    lines = [paint(line, dim=True) if line.startswith("#") else line for line in text.splitlines()]
    following = f"Next: {paint(f'windlass check{job} --on TARGET', bold=True)}, then windlass run{job} --on TARGET"
    return [f"{written[0]} written ({kind}):", "", *lines, "", following]


def _target_lines(target: str, paint: Paint) -> list[str]:
    return [paint("Paste this target into targets.yaml:", bold=True), *target.splitlines()] if target else []


def unmapped_lines(fields: Iterable[UnmappedField], file: str, paint: Paint) -> Iterator[str]:
    """Yields lines about fields without an equivalent: first fields that need action, then all others."""
    fields = list(fields)
    actionable = [one for one in fields if not one.is_handled]
    handled = list(dict.fromkeys(f"{one.field}: {one.meaning}" for one in fields if one.is_handled))
    if actionable:
        yield paint(f"{count(len(actionable), 'field')} without equivalent in a job file:", "yellow", bold=True)
    for one in actionable:
        yield f"  {file}:{one.line}  {paint(one.field, bold=True)}"
        yield f"      {one.meaning}"
        yield f"      {paint('→', dim=True)} {one.instead}"
    if handled:
        yield paint(
            f"Nothing to do about {count(len(handled), 'field')} that Windlass does not need, or handles itself:",
            dim=True,
        )
        yield from (paint(f"  {one}", dim=True) for one in handled)
