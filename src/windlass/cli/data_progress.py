"""Shows the progress of a copy or a download, and exits immediately if interrupted."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from windlass.cli.formatting import count, duration, size
from windlass.cli.interrupts import tidy
from windlass.cli.style import can_draw

if TYPE_CHECKING:
    from windlass.storage.progress import Progress

DRAW_SECONDS: Final = 0.2
LINE_SECONDS: Final = 30.0
"""Seconds between two progress lines if no bar can be drawn."""


@contextmanager
def interruptible(words: Callable[[], str]) -> Iterator[None]:
    """Context manager: Ctrl-C and SIGTERM end the process immediately, without waiting for pending requests."""
    try:
        with tidy():
            yield
    except (KeyboardInterrupt, SystemExit) as ended:
        click.echo(f"interrupted: {words()}", err=True)
        sys.stdout.flush()
        os._exit(int(ended.code or 0) if isinstance(ended, SystemExit) else 130)


@contextmanager
def shown(what: str, progress: Progress, form: str) -> Iterator[None]:
    """Context manager: shows progress during the block, as a bar on a terminal, else as a line every 30 s."""
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
    """Returns one line with the progress after `seconds`, for logs."""
    if progress.is_listing:
        return f"{what}: listing"
    files = f"{progress.files_done:,} of {count(progress.num_files, 'file')}, " if progress.num_files else ""
    line = f"{what}: {files}{size(progress.bytes_done)} of {size(progress.num_bytes)}"
    rate = progress.bytes_moved / seconds if seconds > 0 else 0.0
    if rate < 1:
        return line
    left = (progress.num_bytes - progress.bytes_done) / rate
    return f"{line}, {size(int(rate))}/s, {duration(left)} left"


def _draw(what: str, progress: Progress, over: threading.Event) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars
    from rich.text import Text

    class Rate(ProgressColumn):
        """Progress bar column with the transfer rate in MiB/s; rich's own column shows MB/s."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("?" if speed is None else f"{size(int(speed))}/s", style="progress.data.speed")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        Rate(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[files]}"),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True, refresh_per_second=5) as bars:
        task = bars.add_task(f"{what}: listing", total=None, files="")
        while not over.wait(DRAW_SECONDS):
            if progress.is_listing:
                continue
            files = f"{progress.files_done:,} of {progress.num_files:,} files" if progress.num_files else ""
            bars.update(task, description=what, total=progress.num_bytes, completed=progress.bytes_done, files=files)
