"""`data`: copies, lists and verifies sets of files in folders and object stores."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from windlass.cli import options
from windlass.cli.formatting import Paint, count, duration, size, table, titled, visible
from windlass.cli.interrupts import tidy
from windlass.cli.render import print_data
from windlass.cli.statustext import DIGEST_CHARS
from windlass.cli.style import can_draw

if TYPE_CHECKING:
    from windlass.storage.progress import Progress
    from windlass.views.reports import DataCacheList, DataCopied, DataList, DataVerified, RefusedFile, StagedData

SHOWN: Final = 20
"""Refused files that are named, unless -o json asks for all."""
DRAW_SECONDS: Final = 0.2
LINE_SECONDS: Final = 30.0
"""Between two lines where no bar can be drawn."""
SCHEMES: Final = ("s3://", "gs://", "az://")


def _complete_address(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Kinds of stores, for what may also be a path of this machine."""
    from click.shell_completion import CompletionItem

    schemes = [CompletionItem(scheme) for scheme in SCHEMES if incomplete and scheme.startswith(incomplete)]
    return [*schemes, CompletionItem(incomplete, type="file")]


@click.group()
def data() -> None:
    """Copy, stage, list and verify sets of files: folders, s3://, gs:// and az://.

    \b
    Example:
      windlass data copy s3://bucket/digits/ data/digits
      windlass data verify data/digits
    """


@data.command()
@click.argument("source", shell_complete=_complete_address)
@click.argument("destination", shell_complete=_complete_address)
@options.output
def copy(source: str, destination: str, form: str) -> int:
    """Copy what differs: in parallel, verified, and going on where an earlier copy was ended.

    Nothing is deleted at DESTINATION. It gets a manifest (.windlass/manifest.jsonl) with the SHA-256 of each file, by
    which `data verify` proves it. Ends with 1 where a file was refused; all others are copied.

    \b
    Example:
      windlass data copy s3://bucket/digits/ data/digits
      windlass data copy data/digits s3://bucket/digits/
    """
    from windlass.actions import data as actions
    from windlass.runs.context import here
    from windlass.storage.progress import Progress

    progress = Progress()
    with _interruptible(lambda: _going_on(progress)), _shown("copy", progress, form):
        done = actions.copy(source, destination, here(), progress)
    print_data(done, form, lambda paint: copied_lines(done, paint))
    return 1 if done.refused else 0


@data.command()
@click.argument("address", shell_complete=_complete_address)
@options.output
def verify(address: str, form: str) -> int:
    """Read every byte of a set and compare it with its manifest. Ends with 1 where they differ.

    \b
    Example:
      windlass data verify data/digits
      windlass data verify s3://bucket/digits/ -o json
    """
    from windlass.actions import data as actions
    from windlass.runs.context import here
    from windlass.storage.progress import Progress

    progress = Progress()
    with _interruptible(lambda: "nothing was changed"), _shown("verify", progress, form):
        done = actions.verify(address, here(), progress)
    print_data(done, form, lambda paint: verified_lines(done, paint))
    return 0 if done.ok else 1


@data.command("ls")
@click.argument("address", required=False, shell_complete=_complete_address)
@options.output
def list_(address: str | None, form: str) -> int:
    """List the files of a set, with their sizes; without ADDRESS the sets in the cache of this machine.

    \b
    Example:
      windlass data ls s3://bucket/digits/
      windlass data ls
    """
    from windlass.actions import data as actions
    from windlass.runs.context import here

    if address is None:
        cached = actions.list_cache(here())
        print_data(cached, form, lambda paint: cache_lines(cached, paint))
        return 0
    found = actions.list_files(address, here())
    print_data(found, form, lambda paint: list_lines(found, paint))
    return 0


@data.command()
@click.argument("source", shell_complete=_complete_address)
@options.output
def stage(source: str, form: str) -> int:
    """Fetch a set into the cache of this machine, ahead of the runs that read it.

    Runs whose job has `data:` with this source do it by themselves, and fetch nothing that is there.

    \b
    Example:
      windlass data stage s3://bucket/digits/
    """
    from windlass.actions import data as actions
    from windlass.runs.context import here
    from windlass.storage.progress import Progress

    progress = Progress()
    with _interruptible(lambda: _going_on(progress)), _shown("stage", progress, form):
        done = actions.stage(source, here(), progress)
    print_data(done, form, lambda paint: staged_lines(done))
    return 0


@data.command()
@click.argument("which", metavar="SOURCE|DIGEST")
@options.output
def rm(which: str, form: str) -> int:
    """Remove a set from the cache of this machine; its source is left as it is. Not one that an unfinished run reads.

    \b
    Example:
      windlass data rm s3://bucket/digits/
      windlass data rm set:5f2c8a
    """
    from windlass.actions import data as actions
    from windlass.runs.context import here

    gone = actions.remove(which, here())
    print_data(gone, form, lambda paint: [f"removed {gone.digest}: {count(gone.files, 'file')}, {size(gone.bytes)}"])
    return 0


def copied_lines(done: DataCopied, paint: Paint) -> list[str]:
    """What `data copy` says at its end."""
    moved = f"{count(done.copied_files, 'file')} copied, {size(done.copied_bytes)} in {duration(done.seconds)}"
    if done.copied_bytes and done.seconds >= 0.1:
        moved += f", {size(int(done.copied_bytes / done.seconds))}/s"
    lines = [moved if done.copied_files else "nothing to copy"]
    if done.unchanged_files:
        lines[0] += f"; {count(done.unchanged_files, 'file')} unchanged"
    lines += _refused_lines(done.refused, "not copied", paint)
    lines.append(f"{done.destination}: {count(done.files, 'file')}, {size(done.bytes)}, {done.digest}")
    return lines


def verified_lines(done: DataVerified, paint: Paint) -> list[str]:
    """What `data verify` says."""
    lines = _refused_lines(done.problems, "not as the manifest says", paint)
    if done.extra:
        lines.append(f"{count(len(done.extra), 'other file')} beside the set, such as {visible(done.extra[0])}")
    word = paint("verified", "green") if done.ok else paint("differs", "red", bold=True)
    lines.append(f"{done.address}: {word}, {count(done.files, 'file')}, {size(done.bytes)}, {done.digest}")
    return lines


def list_lines(found: DataList, paint: Paint) -> list[str]:
    """What `data ls` shows."""
    rows = [[visible(one.name), size(one.bytes)] for one in found.files]
    total = f"{count(len(rows), 'file')}, {size(sum(one.bytes for one in found.files))}"
    shown = titled(("NAME", "SIZE"), rows, paint) if rows else []
    return [*shown, f"{found.address}: {total}, {found.digest or 'without a manifest'}"]


def staged_lines(done: StagedData) -> list[str]:
    """What `data stage` says at its end."""
    fetched = f"{size(done.fetched_bytes)} fetched in {duration(done.seconds)}" if done.fetched_bytes else "unchanged"
    return [f"{fetched}: {count(done.files, 'file')}, {size(done.bytes)}, {done.digest}", done.folder]


def cache_lines(found: DataCacheList, paint: Paint) -> list[str]:
    """What `data ls` shows of the cache."""
    now = time.time()
    rows = [
        [one.digest[:DIGEST_CHARS], f"{one.files:,}", size(one.bytes), f"{duration(max(0.0, now - one.used_at))} ago",
         visible(" ".join(one.sources))]
        for one in reversed(found.sets)
    ]  # fmt: skip
    shown = titled(("DIGEST", "FILES", "SIZE", "USED", "SOURCE"), rows, paint) if rows else []
    return [*shown, f"cache: {count(len(rows), 'set')}, {size(sum(one.bytes for one in found.sets))}"]


def _refused_lines(refused: tuple[RefusedFile, ...], what: str, paint: Paint) -> list[str]:
    if not refused:
        return []
    lines = [paint(f"{count(len(refused), 'file')} {what}:", "red")]
    lines += table([[f"  {visible(one.name)}", visible(one.why)] for one in refused[:SHOWN]])
    if len(refused) > SHOWN:
        lines.append(f"  and {len(refused) - SHOWN:,} more: -o json names all")
    return lines


def _going_on(progress: Progress) -> str:
    """How to go on with a copy that was interrupted."""
    done = f"{progress.files_done:,} of {count(progress.num_files, 'file')}, {size(progress.bytes_done)}"
    so_far = "nothing was copied yet" if progress.is_listing else f"{done} are copied"
    return f"{so_far}; the same command goes on from here"


@contextmanager
def _interruptible(words: Callable[[], str]) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the block, and the process, at once: requests that are under way are not waited for."""
    try:
        with tidy():
            yield
    except (KeyboardInterrupt, SystemExit) as ended:
        click.echo(f"interrupted: {words()}", err=True)
        sys.stdout.flush()
        os._exit(int(ended.code or 0) if isinstance(ended, SystemExit) else 130)


@contextmanager
def _shown(what: str, progress: Progress, form: str) -> Iterator[None]:
    """Progress is shown while the work goes on: a bar on a terminal, else a line now and then."""
    show = _draw if can_draw(sys.stderr) else _tell
    if show is _tell and form != "table":
        yield
        return
    over = threading.Event()
    showing = threading.Thread(target=show, args=(what, progress, over), name="progress")
    showing.start()
    try:
        yield
    finally:
        over.set()
        showing.join()


def _tell(what: str, progress: Progress, over: threading.Event) -> None:
    began = time.monotonic()
    while not over.wait(LINE_SECONDS):
        click.echo(progress_line(what, progress, time.monotonic() - began), err=True)


def progress_line(what: str, progress: Progress, seconds: float) -> str:
    """How far it is after so long: for logs."""
    if progress.is_listing:
        return f"{what}: listing"
    line = f"{what}: {progress.files_done:,} of {count(progress.num_files, 'file')}"
    line += f", {size(progress.bytes_done)} of {size(progress.num_bytes)}"
    rate = progress.bytes_moved / seconds if seconds > 0 else 0.0
    if rate < 1:
        return line
    left = (progress.num_bytes - progress.bytes_done) / rate
    return f"{line}, {size(int(rate))}/s, {duration(left)} left"


def _draw(what: str, progress: Progress, over: threading.Event) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(),
        TimeRemainingColumn(), TextColumn("{task.fields[files]}"),
    )  # fmt: skip
    with Bars(*columns, console=Console(stderr=True), transient=True, refresh_per_second=5) as bars:
        task = bars.add_task(f"{what}: listing", total=None, files="")
        while not over.wait(DRAW_SECONDS):
            if progress.is_listing:
                continue
            files = f"{progress.files_done:,} of {progress.num_files:,} files"
            bars.update(task, description=what, total=progress.num_bytes, completed=progress.bytes_done, files=files)
