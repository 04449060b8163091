"""`exec` runs a command next to a rank of a run; `cp` copies files from and to a run or a claim."""

from __future__ import annotations

import sys
import time
from typing import IO, Any

import click

from windlass.cli import options
from windlass.cli.formatting import count, size, visible
from windlass.cli.interrupts import tidy
from windlass.cli.render import print_data
from windlass.cli.run import TakesRest
from windlass.cli.style import interactive

PARTS = ("output/", "checkpoints/", "code/")
"""Path prefixes that completion offers after `RUN:`."""
SHOW_SECONDS = 0.2


def _complete_end(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Completes runs, their paths, and local paths."""
    run, colon, path = incomplete.partition(":")
    if colon:
        return [f"{run}:{part}" for part in PARTS if part.startswith(path)]
    return options.or_file((f"{run}:" for run in options.complete_run(ctx, parameter, incomplete)), incomplete)


@click.command("exec", cls=TakesRest)
@options.run_argument
@click.option("--rank", "-r", type=options.WholeNumber(0), help="Use the environment of this rank. Default: rank 0.")
@click.option("--node", type=options.WholeNumber(0), help="Run on this node, with the variables common to its ranks.")
@click.option("--stdin", "-i", is_flag=True, help="Pass standard input to the command.")
@click.option("--tty", "-t", is_flag=True, help="Allocate a terminal, for a shell, top or a debugger.")
@options.on_cluster
@options.debug
@click.pass_context
def exec(
    ctx: click.Context, /, run: str | None, rank: int | None, node: int | None, stdin: bool, tty: bool, on: str | None
) -> int:
    """Run a command next to a rank of a live run: in its environment, working folder and pod. With claim:NAME, run it
    in a temporary pod that mounts the claim.

    Exits with the command's exit code, or with 125, 126 or 127 if it could not be run.

    \b
    Example:
      windlass exec digits-7 -- nvidia-smi
      windlass exec digits-7 -t -- bash
      windlass exec claim:data --on lab -- ls -la
      windlass exec digits-7 --rank 3 -- sh -c 'echo $LOCAL_RANK'
      windlass exec digits-7 --node 1 -i -- tar -x < more.tar
    """
    from windlass.actions import exec_copy
    from windlass.runs.context import here

    command = ctx.meta.get("rest")
    if not command:
        raise click.UsageError("no command is given: windlass exec RUN -- COMMAND", ctx)
    options.require_named(run, on)
    source: IO[bytes] | None = sys.stdin.buffer if stdin else None
    if tty:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise click.UsageError("--tty needs a terminal as standard input and output", ctx)
        from windlass.engines.base import Terminal

        source = Terminal(sys.stdin.fileno(), closefd=False)
    sys.stdout.flush()
    with here().store() as store:
        return exec_copy.execute(
            run,
            command,
            store,
            on=on,
            rank=rank,
            node=node,
            stdin=source,
            stdout=sys.stdout.buffer,
            stderr=sys.stderr.buffer,
        )


@click.command()
@click.argument("source", metavar="SOURCE", shell_complete=_complete_end)
@click.argument("destination", metavar="DESTINATION", shell_complete=_complete_end)
@click.option("--node", type=options.WholeNumber(0), help="Use the pod of this node. Default: the first node.")
@options.on_cluster
@options.output
def cp(source: str, destination: str, node: int | None, on: str | None, form: str) -> int:
    """Copy files from or to a run or a claim. One of SOURCE and DESTINATION is RUN:PATH or claim:NAME/PATH.

    A relative PATH is in the run's results (output/… and checkpoints/…) or in the code that it started with (code/…).
    An absolute PATH is in the run's pod. Files keep their names when copied into a folder; a DESTINATION that ends in
    / is a folder, which is created. Results in a claim can be copied after the pods are deleted. A claim without a run
    is mounted by a temporary pod on the target --on. Links that lead out of the copied files are skipped.

    \b
    Example:
      windlass cp digits-7:output/model.pt weights/
      windlass cp data claim:data/digits --on lab
      windlass cp digits-7:checkpoints backup
      windlass cp more.csv digits-7:/windlass/work/code/data/
    """
    from pathlib import Path

    from windlass.actions import exec_copy
    from windlass.runs.context import here

    is_shown, shown_at = form == "table" and interactive(sys.stderr), time.monotonic()

    def show(num_bytes: int) -> None:
        nonlocal shown_at
        if is_shown and time.monotonic() - shown_at > SHOW_SECONDS:
            shown_at = time.monotonic()
            click.echo(f"\r\x1b[K{size(num_bytes)}", nl=False, err=True)

    with tidy(), here().store() as store:
        found = exec_copy.copy(source, destination, store, Path.cwd(), on=on, node=node, on_progress=show)
    if is_shown:
        click.echo("\r\x1b[K", nl=False, err=True)
    for line in found.left_out:
        click.echo(f"left out: {visible(line)}", err=True)
    text = f"{count(found.files, 'file')}, {size(found.bytes)}: {visible(found.path)}"
    print_data(found, form, text)
    return 0
