"""`note`: adds the user's note to a run, or shows it."""

from __future__ import annotations

import click

from windlass.cli import options
from windlass.cli.formatting import visible
from windlass.cli.render import print_data


@click.command()
@click.argument("run", shell_complete=options.complete_run)
@click.argument("text", nargs=-1, metavar="[TEXT…]")
@click.option("--remove", is_flag=True, help="Remove the note.")
@options.on_cluster
@options.output
def note(run: str, text: tuple[str, ...], remove: bool, on: str | None, form: str) -> int:
    """Write a note on a run, which `status` and `ps` show; without a text, show it.

    The note is stored in the record of the run, and replaces an earlier one. If the record is in a cluster, other users
    of the namespace can read and change the note.

    \b
    Example:
      windlass note digits-7f3k2 learning rate of the paper, batch 64
      windlass note digits-7f3k2
      windlass note digits-7f3k2 --on lab
    """
    from windlass.actions.runs import opened
    from windlass.runs.store import NOTE_CHARS
    from windlass.views.run import RunNote

    words = " ".join(text).strip()
    if text and not words:
        raise click.UsageError("the note is empty; --remove removes the existing note")
    if words and remove:
        raise click.UsageError("--remove takes no text")
    if len(words) > NOTE_CHARS:
        raise click.UsageError(f"a note has {NOTE_CHARS:,} characters at most; this one has {len(words):,}")
    with opened(run, on) as (engine, run_id):
        if words or remove:
            engine.write_note(run_id, words)
        found = RunNote(run_id, words if words or remove else engine.note(run_id))
    print_data(found, form, visible(found.note) or f"{run_id} has no note")
    return 0
