"""`targets` lists targets; `target setup` creates the objects that supervisors in a cluster need, once per
namespace.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from windlass.cli import options
from windlass.cli.formatting import Paint, columns_of, fitting, tilde, titled, visible
from windlass.cli.render import print_data, to_yaml

if TYPE_CHECKING:
    from windlass.engines.checks import ObjectChange
    from windlass.spec.targets import Target

COLOURS = {"created": "green", "changed": "yellow", "removed": "yellow", "kept": None, "absent": None}


@click.command()
@options.output
def targets(form: str) -> int:
    """List the targets for --on, each with its location and the file that defines it.

    Targets are read from targets.yaml in this folder, then from ~/.config/windlass/targets.yaml, then from the clusters
    created by `windlass cluster up`. The first file that defines a name wins.

    \b
    Example:
      windlass targets
      windlass targets -o json
    """
    from windlass.actions.targets import named_targets
    from windlass.runs.context import here
    from windlass.views.targets import TargetView

    found = [
        TargetView(
            name,
            target.kind,
            _place(target),
            None if path is None else str(path),
            target.model_dump(mode="json", exclude_defaults=True, exclude={"name", "kind"}),
        )
        for name, (target, path) in named_targets(here()).items()
    ]
    print_data(
        found,
        form,
        lambda paint: fitting(
            ("NAME", "KIND", "WHERE", "FILE"),
            ([paint(one.name, bold=True), one.kind, visible(one.place), tilde(one.file or "–")] for one in found),
            [("FILE", 0)],
            paint,
            columns_of(sys.stdout),
        ),
    )
    return 0


def _place(target: Target) -> str:
    """Formats the location of a target: context and namespace of a cluster, or region of an account."""
    words = [str(getattr(target, field)) for field in ("context", "namespace", "region") if getattr(target, field, "")]
    return " ".join(words) or "this machine"


@click.group()
def target() -> None:
    """Set up targets.

    \b
    Example:
      windlass target setup lab
    """


@target.command(short_help="Let supervisors run in the cluster.")
@click.argument("name", metavar="TARGET")
@click.option("--remove", is_flag=True, help="Remove the objects; refused while supervisors use them.")
@options.output_as("table", "json", "yaml", "manifest")
def setup(name: str, remove: bool, form: str) -> int:
    """Let supervisors run in the cluster: create their service account and its Role.

    Run it once per namespace, with a login that may create Roles. Without this setup, the supervisor of a run is on the
    machine that starts the run, and failed runs are not restarted while that machine is off. Repeating the command,
    such as after an upgrade, updates the objects. `-o manifest` changes nothing and prints the objects, for a platform
    team to apply.

    \b
    Example:
      windlass target setup lab
      windlass target setup lab -o manifest | kubectl apply -f -
      windlass target setup lab --remove
    """
    from windlass.actions.targets import find_target
    from windlass.engines import engine_class
    from windlass.runs.context import here
    from windlass.views.targets import TargetSetup

    if remove and form == "manifest":
        raise click.UsageError("-o manifest prints what is created; to remove it: kubectl delete -f")
    context = here()
    found = find_target(name, context)
    engine = engine_class(found.kind, f"target {name}")
    if form == "manifest":
        click.echo("---\n".join(to_yaml(document) for document in engine.setup_objects(found, context)), nl=False)
        return 0
    objects = tuple(engine.setup(found, context, remove=remove))
    after = [] if remove else ["", f"Next: windlass check --on {name}, which shows where new runs are supervised"]
    print_data(TargetSetup(name, objects), form, lambda paint: [*change_lines(objects, paint), *after])
    return 0


def change_lines(objects: Sequence[ObjectChange], paint: Paint) -> list[str]:
    """Formats a table of the changed objects."""
    rows = ([one.kind, one.name, paint(one.change, COLOURS[one.change])] for one in objects)
    return titled(("KIND", "NAME", "CHANGE"), rows, paint)
