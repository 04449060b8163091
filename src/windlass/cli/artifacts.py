"""`artifacts`: lists the files that a run produced, their locations, and the command that copies each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from windlass.cli import options
from windlass.cli.formatting import Paint, count, size, tilde, titled, visible
from windlass.cli.render import print_data
from windlass.cli.statustext import DIGEST_CHARS, labelled

if TYPE_CHECKING:
    from windlass.views.artifacts import Artifact, ArtifactList

STEPS: Final = 5
"""Maximum number of checkpoints listed, newest first."""


@click.command()
@options.run_argument
@click.option("--files", is_flag=True, help="List the files in claims, pods and stores, too.")
@options.on_cluster
@options.output
def artifacts(run: str | None, files: bool, on: str | None, form: str) -> int:
    """List outputs, checkpoints and uploads of a run, each with the command that copies it.

    Files in a cluster or a store are listed from the record. With --files they are listed from the storage itself,
    which starts a pod if none of the run's pods is left.

    \b
    Example:
      windlass artifacts
      windlass artifacts digits-7f3k2 --files
    """
    from windlass.actions.artifacts import list_artifacts
    from windlass.actions.runs import opened

    with opened(run, on) as (engine, run_id):
        found = list_artifacts(engine, run_id, reach=files)
    print_data(found, form, lambda paint: list(lines(found, paint)))
    return 0


def lines(found: ArtifactList, paint: Paint) -> Iterator[str]:
    """Yields the output lines of `windlass artifacts`."""
    yield f"{paint(found.id, bold=True)}  {found.phase}"
    for one in found.artifacts:
        yield from labelled(one.kind, [where_words(one), *_more(one, paint)], paint)
    if found.files:
        yield from titled(("SIZE", "FILE"), [[size(one.bytes), visible(one.name)] for one in found.files], paint)
        [outputs] = [one for one in found.artifacts if one.kind == "outputs"]
        if (hidden := (outputs.files or 0) - len(found.files)) > 0:
            yield f"and {count(hidden, 'more file')}"


def where_words(one: Artifact) -> str:
    """Formats a location: `claim results: windlass/digits-7f3k2/output (3 files, 12 MiB)`."""
    where = visible(tilde(one.where) if one.place == "folder" else one.where)
    if one.place == "claim":
        where = f"claim {one.claim}: {where}" if one.kind == "outputs" else f"claim {one.claim}"
    elif one.place == "pods":
        where = f"{where} of its pods"
    parts = []
    if one.files is not None:
        parts.append(count(one.files, "file"))
    if one.steps is not None:
        parts.append(_steps(one.steps))
    elif one.newest_step is not None:
        parts.append(f"the newest of step {one.newest_step:,}")
    if one.bytes is not None and (one.files != 0):
        parts.append(size(one.bytes))
    if one.others:
        parts.append(count(one.others, "other entry", "other entries"))
    return f"{where} ({', '.join(parts)})" if parts else where


def _steps(steps: tuple[int, ...]) -> str:
    if not steps:
        return "no checkpoint"
    named = ", ".join(f"{step:,}" for step in steps[:STEPS])
    more = f" and {len(steps) - STEPS} more" if len(steps) > STEPS else ""
    return f"{count(len(steps), 'checkpoint')}: step {named}{more}"


def _more(one: Artifact, paint: Paint) -> Iterator[str]:
    if one.digest:
        yield f"{one.digest[:DIGEST_CHARS]}…"
    if one.note:
        yield paint(visible(one.note), "yellow")
    if one.copy:
        yield paint(one.copy, bold=True)
