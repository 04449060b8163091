"""`checkpoints`: lists, verifies, prunes and exports the checkpoints of a run."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from windlass.cli import options
from windlass.cli.formatting import Paint, columns_of, count, duration, fitting, number, size, table, tilde, visible
from windlass.cli.render import print_data
from windlass.train.checkpoint.faults import Fault, worst
from windlass.train.checkpoint.storage import ASIDE
from windlass.views import checkpoints as views
from windlass.views.serialise import view_of

if TYPE_CHECKING:
    from windlass.actions.checkpoints import Checkpoints
    from windlass.plan.plan import Plan

VALUED = ("-o", "--output", "--on")
"""Subcommand options with a value, which the user may also write before the run."""
NEVER_REMOVED = (Fault.UNREADABLE, Fault.UNKNOWN_FORMAT)


class RunFirst(click.Group):
    """A command group that accepts a run before the subcommand; the default subcommand is `list`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reorders `[OPTIONS] [RUN] [COMMAND]` to `RUN COMMAND OPTIONS`; an empty RUN means the newest run."""
        ahead, rest = [], list(args)
        while rest and rest[0].startswith("-"):
            valued = rest[0] in VALUED
            ahead.append(rest.pop(0))
            if valued and rest:
                ahead.append(rest.pop(0))
        if ctx.resilient_parsing and not rest:  # the shell is completing an unfinished line
            return super().parse_args(ctx, args)
        if "--help" in ahead or "-h" in ahead:
            return super().parse_args(ctx, ["--help"])
        run = "" if not rest or rest[0] in self.commands else rest.pop(0)
        command = rest.pop(0) if rest and not rest[0].startswith("-") else ""
        if ctx.resilient_parsing and not command:
            return super().parse_args(ctx, [run])
        return super().parse_args(ctx, ["--", run, command or "list", *ahead, *rest])


def _complete_first(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Completes run ids and subcommands; a subcommand without a run applies to the newest run."""
    assert isinstance(ctx.command, click.Group)
    commands = [name for name in ctx.command.commands if name.startswith(incomplete)]
    return [*options.complete_run(ctx, parameter, incomplete), *commands]


def _run(ctx: click.Context) -> str | None:
    """Returns the run given before the subcommand; None means the newest run."""
    assert ctx.parent is not None
    return ctx.parent.params.get("run") or None


def _look(run: str | None, on: str | None) -> tuple[Checkpoints, Plan]:
    """Returns the checkpoints of a run, and its recorded plan."""
    from windlass.actions.checkpoints import find_checkpoints
    from windlass.actions.runs import opened

    with opened(run, on) as (engine, run_id):
        return find_checkpoints(engine, run_id), engine.store.plan(run_id)


@click.group(cls=RunFirst)
@click.argument("run", required=False, shell_complete=_complete_first)
def checkpoints(run: str | None) -> None:
    """List, verify, prune and export the checkpoints of a run (default: the newest run).

    \b
    Example:
      windlass checkpoints
      windlass checkpoints digits-7f3k2 verify
      windlass checkpoints digits-7f3k2 export model.safetensors
    """


@checkpoints.command("list")
@options.on_cluster
@options.output
@click.pass_context
def list_(ctx: click.Context, on: str | None, form: str) -> int:
    """List checkpoints, newest first. Reads only their manifests; `verify` reads every byte.

    \b
    Example:
      windlass checkpoints
      windlass checkpoints digits-7f3k2 -o json
    """
    seen, plan = _look(_run(ctx), on)
    found = tuple(view_of(views.CheckpointView, one) for one in seen.found)
    report = views.CheckpointList(seen.status.id, seen.folder, found)
    print_data(report, form, lambda paint: list_lines(report, time.time(), paint))
    if form == "table" and seen.others:
        click.echo(f"and {count(seen.others, 'other entry', 'other entries')} in {tilde(report.folder)}", err=True)
    pattern = (plan.job.get("checkpoint") or {}).get("find")
    if form == "table" and pattern:
        click.echo(f"files of find: {pattern} are not listed; which were used: windlass events {report.id}", err=True)
    return 0


@checkpoints.command(short_help="Read every byte of checkpoints and compare checksums.")
@click.argument("name", required=False, shell_complete=options.complete_checkpoint)
@options.on_cluster
@options.output
@click.pass_context
def verify(ctx: click.Context, name: str | None, on: str | None, form: str) -> int:
    """Read every byte of one checkpoint, or of all, and compare checksums. Exits with 1 if one is not verified.

    NAME may be a prefix of a name, or a step. A checkpoint whose save is still running, or was never finished, is
    reported as unfinished, not as damaged; one that cannot be read is reported as unreadable.

    \b
    Example:
      windlass checkpoints digits-7f3k2 verify
      windlass checkpoints digits-7f3k2 verify step-00000120-a2f3c1
    """
    from windlass.actions import checkpoints as actions

    seen, _ = _look(_run(ctx), on)
    found = actions.verify(seen, name)
    rows = tuple(
        views.VerifiedCheckpoint(
            one, fault.value if (fault := worst(problems)) else "verified", tuple(problem.text for problem in problems)
        )
        for one, problems in found.items()
    )
    report = views.VerifiedCheckpoints(seen.status.id, not any(found.values()), rows)
    words = {one: actions.state_words(problems) for one, problems in found.items()}
    print_data(report, form, lambda paint: verified_lines(report, words, paint))
    return 0 if report.ok else 1


@checkpoints.command(short_help="Remove old checkpoints of this run.")
@click.option("--keep", type=options.WholeNumber(1), metavar="N", help="Keep the newest N verified checkpoints.")
@click.option("--older-than", metavar="AGE", help="Remove checkpoints older than this: 12h, 7d.")
@options.on_cluster
@options.output
@click.pass_context
def prune(ctx: click.Context, keep: int | None, older_than: str | None, on: str | None, form: str) -> int:
    """Remove old checkpoints of this run, by default all but the job's `keep`; the newest verified one is always kept.

    Damaged checkpoints are renamed, and removed once a newer one is verified. A checkpoint that cannot be read, has an
    unknown format or was saved by another run is never removed.

    \b
    Example:
      windlass checkpoints digits-7f3k2 prune --keep 1
      windlass checkpoints digits-7f3k2 prune --older-than 2d
    """
    from windlass.actions import checkpoints as actions

    age = None if older_than is None else options.seconds(older_than, "--older-than", "write it as 30min, 12h or 7d")
    seen, plan = _look(_run(ctx), on)
    done = actions.prune(seen, keep, age, plan)
    left, _ = _look(seen.status.id, on)
    kept = tuple(one.name for one in left.complete)
    # `prune` renames a damaged checkpoint before it removes it; `seen` lists the checkpoint by its old name.
    sizes = {one.name: one.bytes for one in seen.found}
    freed = sum(sizes.get(name, sizes.get(name.removesuffix(ASIDE), 0)) for name in done.removed)
    lines = [f"{name} is damaged: renamed to {name}{ASIDE}" for name in done.set_aside]
    lines += [f"{name} removed" for name in done.removed]
    lines += [f"{one.name} is {one.state}: not removed" for one in left.found if one.fault in NEVER_REMOVED]
    lines.append(f"{count(len(kept), 'checkpoint')} kept, {size(freed)} freed")
    report = views.PrunedCheckpoints(seen.status.id, tuple(done.removed), tuple(done.set_aside), kept, freed)
    print_data(report, form, lines)
    return 0


@checkpoints.command(short_help="Write the model of a checkpoint as one file.")
@click.argument("names", nargs=-1, required=True, metavar="[NAME] PATH", shell_complete=options.complete_checkpoint)
@click.option("--part", default="model", show_default=True, help="Name of the saved object to export.")
@options.on_cluster
@options.output
@click.pass_context
def export(ctx: click.Context, names: tuple[str, ...], part: str, on: str | None, form: str) -> int:
    """Write the model of a checkpoint as one file (default: the newest verified checkpoint).

    PATH ends in .safetensors, or in .pt for torch.load; the latter is written by the job's interpreter, or by the
    active environment's for a run in a cluster or on SageMaker. Parameter names are written without the prefix of DDP.
    The checkpoint is verified first; a damaged one is refused.

    \b
    Example:
      windlass checkpoints digits-7f3k2 export model.safetensors
      windlass checkpoints digits-7f3k2 export step-00000120-a2f3c1 model.pt
    """
    from windlass.actions import checkpoints as actions

    if len(names) > 2:
        raise click.UsageError("export takes a checkpoint's name, if any, and one path", ctx)
    seen, plan = _look(_run(ctx), on)
    name = names[0] if len(names) == 2 else None
    report, passed_over = actions.export(seen, name, Path(names[-1]).absolute(), part, plan)
    for name, problems in passed_over.items():
        why = "; ".join(map(str, problems))
        click.echo(f"warning: {name} is newer and {actions.state_words(problems)}: {why}", err=True)
    print_data(report, form, f"{tilde(report.path)}: {part} of {report.name}, {size(report.bytes)}")
    return 0


def list_lines(report: views.CheckpointList, now: float, paint: Paint) -> list[str]:
    """Returns the output lines of `windlass checkpoints`."""
    if not report.checkpoints:
        return [f"{report.id} has no checkpoint in {tilde(report.folder)}"]
    rows = []
    for one in report.checkpoints:
        # Size and age of an unreadable checkpoint may be unknown.
        known = [size(one.bytes), duration(now - one.created_at)] if one.created_at else ["–", "–"]
        epoch = str(one.epoch) if one.complete else "–"
        rows.append([one.name, number(one.step), epoch, str(one.world_size or "–"), *known, _state(one, paint)])
    titles = ("NAME", "STEP", "EPOCH", "RANKS", "SIZE", "AGE", "STATE")
    return fitting(titles, rows, [(title, 0) for title in ("EPOCH", "RANKS", "AGE")], paint, columns_of(sys.stdout))


def verified_lines(report: views.VerifiedCheckpoints, words: Mapping[str, str], paint: Paint) -> list[str]:
    """Returns the output lines of `windlass checkpoints verify`; `words` maps checkpoint names to their states in
    words.
    """
    colours = {"verified": "green", Fault.DAMAGED.value: "red"}
    rows = [
        [
            one.name,
            paint(words[one.name], colours.get(one.state, "yellow"), bold=one.state == Fault.DAMAGED.value),
            visible("; ".join(one.problems)),
        ]
        for one in report.checkpoints
    ]
    return table(rows) or [f"{report.id} has no checkpoint to verify"]


def _state(one: views.CheckpointView, paint: Paint) -> str:
    from windlass.actions.checkpoints import STATES

    if one.complete:
        return "complete"
    fault = Fault(one.state)
    word = paint(STATES[fault], "red" if fault is Fault.DAMAGED else "yellow")
    return word if fault is Fault.UNFINISHED else f"{word}: {visible(one.problem)}"
