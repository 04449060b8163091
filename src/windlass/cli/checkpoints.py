"""`checkpoints`: lists, verifies, prunes and exports the checkpoints of a run."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from windlass.cli import options
from windlass.cli.render import print_data
from windlass.cli.words import Paint, count, duration, number, painter, size, table, tilde, visible
from windlass.train.checkpoint.faults import Fault, worst
from windlass.train.checkpoint.storage import ASIDE

if TYPE_CHECKING:
    from windlass.actions.checkpoints import Checkpoints
    from windlass.train.checkpoint.files import Found

VALUED = ("-o", "--output")
"""Options of `list` that have a value: they may stand before the run too."""
NEVER_REMOVED = (Fault.UNREADABLE, Fault.UNKNOWN_FORMAT)


class RunFirst(click.Group):
    """A group whose first word is a run, unless it is a command; without a command it is `list`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`[OPTIONS] [RUN] [COMMAND]` as `RUN COMMAND OPTIONS`, an empty run for the newest."""
        ahead, rest = [], list(args)
        while rest and rest[0].startswith("-"):
            valued = rest[0] in VALUED
            ahead.append(rest.pop(0))
            if valued and rest:
                ahead.append(rest.pop(0))
        if ctx.resilient_parsing and not rest:  # a line that is being typed ends here
            return super().parse_args(ctx, args)
        if "--help" in ahead or "-h" in ahead:
            return super().parse_args(ctx, ["--help"])
        run = "" if not rest or rest[0] in self.commands else rest.pop(0)
        command = rest.pop(0) if rest and not rest[0].startswith("-") else ""
        if ctx.resilient_parsing and not command:
            return super().parse_args(ctx, [run])
        return super().parse_args(ctx, ["--", run, command or "list", *ahead, *rest])


def _complete_name(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return options.checkpoint_names(_run(ctx), incomplete)


def _complete_first(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """A run, or at once what to do with the newest."""
    assert isinstance(ctx.command, click.Group)
    commands = [name for name in ctx.command.commands if name.startswith(incomplete)]
    return [*options.run_ids(incomplete), *commands]


def _run(ctx: click.Context) -> str | None:
    """The run that was named before the command; None for the newest."""
    assert ctx.parent is not None
    return ctx.parent.params.get("run") or None


@click.group(cls=RunFirst)
@click.argument("run", required=False, shell_complete=_complete_first)
def checkpoints(run: str | None) -> None:
    """List, verify, prune and export the checkpoints of a run: of the newest, unless one is named.

    \b
    Example:
      windlass checkpoints
      windlass checkpoints digits-7f3k2 verify
      windlass checkpoints digits-7f3k2 export model.safetensors
    """


@checkpoints.command("list")
@options.output
@click.pass_context
def list_(ctx: click.Context, form: str) -> int:
    """List them, newest first. Reads their manifests alone: `verify` reads every byte.

    \b
    Example:
      windlass checkpoints
      windlass checkpoints digits-7f3k2 -o json
    """
    from windlass.actions.checkpoints import look
    from windlass.actions.edge import here

    with here().store() as store:
        seen = look(_run(ctx), store)
    data = {"id": seen.status.id, "folder": str(seen.folder), "checkpoints": [_as_json(one) for one in seen.found]}
    print_data(data, form, list_lines(seen, time.time(), painter(sys.stdout)) if form == "table" else "")
    if form == "table" and seen.others:
        click.echo(
            f"and {count(seen.others, 'other thing')} that the script keeps in {tilde(str(seen.folder))}", err=True
        )
    return 0


@checkpoints.command()
@click.argument("name", required=False, shell_complete=_complete_name)
@options.output
@click.pass_context
def verify(ctx: click.Context, name: str | None, form: str) -> int:
    """Read every byte of one checkpoint, or of all, and hold it to its checksums. Ends with 1 where one is damaged.

    NAME may be the beginning of a name, or a step. What is still being written, or was never finished, is no damage.
    What cannot be read is not verified, and no damage either; it ends with 1 too.

    \b
    Example:
      windlass checkpoints digits-7f3k2 verify
      windlass checkpoints digits-7f3k2 verify step-00000120-a2f3c1
    """
    from windlass.actions import checkpoints as actions
    from windlass.actions.edge import here

    with here().store() as store:
        seen = actions.look(_run(ctx), store)
    found = actions.verify(seen, name)
    told = {one: [problem.text for problem in problems] for one, problems in found.items()}
    states = {one: worst(problems) for one, problems in found.items()}
    data = {
        "id": seen.status.id,
        "ok": not any(found.values()),
        "checkpoints": [
            {"name": one, "state": fault.value if fault is not None else "verified", "problems": told[one]}
            for one, fault in states.items()
        ],
    }
    paint = painter(sys.stdout)
    colours = {None: "green", Fault.DAMAGED: "red"}
    rows = [
        [
            one,
            paint(actions.state_words(found[one]), colours.get(fault, "yellow"), bold=fault is Fault.DAMAGED),
            visible("; ".join(told[one])),
        ]
        for one, fault in states.items()
    ]
    print_data(data, form, table(rows) or f"{seen.status.id} has no checkpoint to verify")
    return 0 if data["ok"] else 1


@checkpoints.command()
@click.option("--keep", type=click.IntRange(1), metavar="N", help="Keep the newest N verified ones.")
@click.option("--older-than", metavar="AGE", help="Remove those older than this: 12h, 7d.")
@options.output
@click.pass_context
def prune(ctx: click.Context, keep: int | None, older_than: str | None, form: str) -> int:
    """Remove old checkpoints of this run; the newest verified one always stays. By default the job's `keep` holds.

    Damaged ones are set aside under another name, and removed once a newer one is verified. What cannot be read, has an
    unknown format or was saved by another run is never removed.

    \b
    Example:
      windlass checkpoints digits-7f3k2 prune --keep 1
      windlass checkpoints digits-7f3k2 prune --older-than 2d
    """
    from windlass.actions import checkpoints as actions
    from windlass.actions.edge import here

    age = None if older_than is None else options.seconds(older_than, "--older-than", "write it as 30min, 12h or 7d")
    with here().store() as store:
        seen = actions.look(_run(ctx), store)
        done = actions.prune(seen, keep, age, store.plan(seen.status.id))
        left = actions.look(seen.status.id, store)
    kept = [one.name for one in left.complete]
    # One that was set aside and removed at once had another name before.
    sizes = {one.name: one.bytes for one in seen.found}
    freed = sum(sizes.get(name, sizes.get(name.removesuffix(ASIDE), 0)) for name in done.removed)
    said = [f"{name} is damaged: set aside as {name}{ASIDE}" for name in done.set_aside]
    said += [f"{name} removed" for name in done.removed]
    said += [f"{one.name} is {one.state}: not removed" for one in left.found if one.fault in NEVER_REMOVED]
    said.append(f"{count(len(kept), 'checkpoint')} kept, {size(freed)} freed")
    data = {"id": seen.status.id, "removed": done.removed, "set_aside": done.set_aside, "kept": kept,
            "freed_bytes": freed}  # fmt: skip
    print_data(data, form, said)
    return 0


@checkpoints.command()
@click.argument("names", nargs=-1, required=True, metavar="[NAME] PATH", shell_complete=_complete_name)
@click.option("--part", default="model", show_default=True, help="Which of the things that were saved together.")
@options.output
@click.pass_context
def export(ctx: click.Context, names: tuple[str, ...], part: str, form: str) -> int:
    """Write the model of a checkpoint as one plain file; of the newest verified one, unless one is named.

    PATH ends in .safetensors, or in .pt for torch.load; the latter is written by the job's own interpreter. The prefix
    that DDP puts before names is left out. A checkpoint is verified first, and a damaged one refused.

    \b
    Example:
      windlass checkpoints digits-7f3k2 export model.safetensors
      windlass checkpoints digits-7f3k2 export step-00000120-a2f3c1 model.pt
    """
    from windlass.actions import checkpoints as actions
    from windlass.actions.edge import here

    if len(names) > 2:
        raise click.UsageError("export takes a checkpoint's name, if any, and one path", ctx)
    with here().store() as store:
        seen = actions.look(_run(ctx), store)
        path = Path(names[-1]).absolute()
        done = actions.export(seen, names[0] if len(names) == 2 else None, path, part, store.plan(seen.status.id))
    for name, problems in done.passed_over.items():
        said = "; ".join(map(str, problems))
        click.echo(f"warning: {name} is newer and {actions.state_words(problems)}: {said}", err=True)
    data = {"id": seen.status.id, "name": done.name, "path": done.path, "bytes": done.bytes}
    print_data(data, form, f"{tilde(done.path)}: {part} of {done.name}, {size(done.bytes)}")
    return 0


def list_lines(seen: Checkpoints, now: float, paint: Paint) -> list[str]:
    """What `windlass checkpoints` shows."""
    if not seen.found:
        return [f"{seen.status.id} has no checkpoint in {tilde(str(seen.folder))}"]
    head = [paint(title, dim=True) for title in ("NAME", "STEP", "EPOCH", "RANKS", "SIZE", "AGE", "STATE")]
    rows = [
        [one.name, number(one.step), str(one.epoch) if one.complete else "–", str(one.world_size or "–"),
         "–" if _is_unseen(one) else size(one.bytes), "–" if _is_unseen(one) else duration(now - one.created_at),
         _state(one, paint)]
        for one in seen.found
    ]  # fmt: skip
    return table([head, *rows])


def _is_unseen(found: Found) -> bool:
    """Whether not even its size and age could be read."""
    return not found.created_at


def _state(found: Found, paint: Paint) -> str:
    from windlass.actions.checkpoints import STATES

    if found.complete:
        return "complete"
    word = paint(STATES[found.fault], "red" if found.fault is Fault.DAMAGED else "yellow")
    return word if found.fault is Fault.UNFINISHED else f"{word}: {visible(found.problem)}"


def _as_json(found: Found) -> dict[str, Any]:
    names = ("name", "path", "step", "epoch", "created_at", "bytes", "complete", "state", "attempt", "world_size",
             "problem")  # fmt: skip
    return {name: getattr(found, name) for name in names}
