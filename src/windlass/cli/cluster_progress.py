"""Shows the progress of `cluster up` and `cluster down`: one line for each completed operation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from windlass.cli.formatting import Paint, duration, painter, visible
from windlass.cli.style import can_draw
from windlass.runs.clock import Clock

QUIET_SECONDS: Final = 30.0
"""Seconds between two lines about a pending resource if the output is not a terminal."""
OF_TARGETS: Final = frozenset({"Resource targeting is in effect", "Applied changes may be incomplete"})
"""Terraform's warnings about targeted plans, not shown because these plans are only steps of a full plan."""
WORDS: Final = {"create": "made", "update": "changed", "delete": "removed", "read": "read", "import": "imported"}


@contextmanager
def shown(form: str) -> Iterator[Callable[[Any], None]]:
    """Provides a function that shows events of Terraform, of components and of the drain on standard error.

    With `-o json` only warnings and errors are shown.
    """
    show = Progress(painter(sys.stderr), can_rewrite=can_draw(sys.stderr), is_brief=form != "table")
    try:
        yield show
    finally:
        show.clear()


class Progress:
    """Prints each event as a line, and all pending operations on one line that is rewritten."""

    def __init__(
        self,
        paint: Paint,
        *,
        can_rewrite: bool,
        is_brief: bool,
        clock: Clock | None = None,
    ) -> None:
        self._paint, self._can_rewrite, self._is_brief = paint, can_rewrite, is_brief
        self._clock = clock or Clock()
        self._under_way: dict[str, float] = {}
        """Start time of each pending operation, by address."""
        self._named_at = self._clock.monotonic()
        self._is_drawn = False
        self._command = ""
        """Name of the running Terraform command."""

    def __call__(self, event: Any) -> None:
        """Shows an event; unknown events are ignored."""
        handler = getattr(self, f"_{type(event).__name__}", None)
        if handler is not None:
            handler(event)

    def clear(self) -> None:
        """Erases the line with pending operations from the terminal."""
        if self._is_drawn:
            self._write("\r\x1b[K")
            self._is_drawn = False

    @staticmethod
    def _write(text: str) -> None:
        click.echo(text, err=True, nl=False, color=True)

    def _line(self, text: str, *, is_important: bool = False) -> None:
        if self._is_brief and not is_important:
            return
        self.clear()
        self._write(f"{text}\n")

    def _draw(self) -> None:
        """Shows pending operations: on a terminal in a line that is rewritten, elsewhere in a new line every 30 s."""
        if self._is_brief or not self._under_way:
            self.clear()
            return
        now = self._clock.monotonic()
        longest, since = min(self._under_way.items(), key=lambda item: item[1])
        others = f" and {len(self._under_way) - 1} more" if len(self._under_way) > 1 else ""
        text = f"  … {longest}, {duration(now - since)}{others}"
        if self._can_rewrite:
            self._write(f"\r\x1b[K{self._paint(text, dim=True)}")
            self._is_drawn = True
        elif now - self._named_at >= QUIET_SECONDS:
            self._named_at = now
            self._write(f"{text}\n")

    # -- events: one method for each, by the name of its class --------------------------------------------------------

    def _StageStarted(self, event: Any) -> None:  # noqa: N802
        self._named_at = self._clock.monotonic()
        self._line(self._paint(visible(event.text), bold=True))

    def _ResourceStarted(self, event: Any) -> None:  # noqa: N802
        self._under_way[event.address] = self._clock.monotonic()
        self._draw()

    def _ResourceProgress(self, event: Any) -> None:  # noqa: N802
        self._under_way.setdefault(event.address, self._clock.monotonic() - event.elapsed_seconds)
        self._draw()

    def _ResourceDone(self, event: Any) -> None:  # noqa: N802
        self._under_way.pop(event.address, None)
        if event.action != "read":
            word = self._paint(WORDS.get(event.action, event.action), "green")
            self._line(f"  {word} {event.address} ({duration(event.elapsed_seconds)})")
        self._draw()

    def _ResourceFailed(self, event: Any) -> None:  # noqa: N802
        self._under_way.pop(event.address, None)
        self._line(f"  {self._paint('failed', 'red')} {event.address}", is_important=True)

    def _Diagnostic(self, event: Any) -> None:  # noqa: N802
        if not event.is_error and event.summary not in OF_TARGETS:
            # errors are shown with the exception that the command raises
            where = f" ({event.where})" if event.where else ""
            self._warn(f"{event.summary}{where}")

    def _Warned(self, event: Any) -> None:  # noqa: N802
        self._warn(event.text)

    def _warn(self, text: str) -> None:
        self._line(f"  {self._paint('warning', 'yellow')} {visible(text)}", is_important=True)

    def _CommandStarted(self, event: Any) -> None:  # noqa: N802
        self._command = event.command

    def _TerraformNote(self, event: Any) -> None:  # noqa: N802
        text = " ".join(click.unstyle(event.text).split())
        if text:  # `terraform init` reports on its providers, which users need not see
            self._line(f"  {visible(text)}", is_important=self._command != "init")

    def _Step(self, event: Any) -> None:  # noqa: N802
        self._line(f"  {event.component}: {event.what} {visible(event.detail)}")

    def _DrainStep(self, event: Any) -> None:  # noqa: N802
        self._line(f"  {event.what} {visible(event.detail)}")

    def _Exporting(self, event: Any) -> None:  # noqa: N802
        share = f", {100 * event.share:.0f} %" if event.share is not None else ""
        self._line(f"  FSx export: {event.state.lower()}{share}")
