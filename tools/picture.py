"""Draws docs/images/live.svg from a real run of example 01: its log, the live view in mid-training, the summary.

The letters are the command line's own; only the frame around them is made here. Nothing of this machine gets into the
picture: the records live in a home of their own, and the SVG names no font file.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from windlass.actions import runs
from windlass.actions.jobs import read_job
from windlass.cli.follow import Follower, PlainView
from windlass.cli.formatting import painter
from windlass.cli.interrupts import Interrupts
from windlass.cli.live import panel
from windlass.cli.logs import terminal_lines
from windlass.cli.statustext import summary_lines
from windlass.engines import engine_class
from windlass.runs.context import Context
from windlass.runs.events import Event
from windlass.runs.ledger import fold_ledger
from windlass.runs.logs import LogBlock
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.views.run import advance_of, run_of, summary_of

if TYPE_CHECKING:
    from windlass.plan.plan import Plan

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "live.svg"
EXAMPLE = ROOT / "examples" / "01-digits"
WIDTH = 96
LOG_LINES = 8
SHARE = 0.55
THEME = TerminalTheme(
    (13, 17, 23),
    (230, 237, 243),
    [(72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34), (88, 166, 255), (188, 140, 255), (57, 197, 207),
     (177, 186, 196)],
    [(110, 118, 129), (255, 161, 152), (86, 211, 100), (227, 179, 65), (121, 192, 255), (210, 168, 255), (86, 212, 221),
     (255, 255, 255)],
)  # fmt: skip
SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width;
}}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


class Album(PlainView):
    """A view that keeps the lines and the status of the moment when enough of the run is over."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.middle: tuple[Status, float | None, float, list[str]] | None = None

    def logs(self, blocks: list[LogBlock]) -> None:
        """Keep the lines."""
        for block in blocks:
            # The script prints absolute paths; the picture shows them as a shell would take them.
            self.lines += terminal_lines(block).replace(os.environ["HOME"], "~").splitlines()

    def state(self, status: Status, rate: float | None) -> None:
        """Keep the first status that is far enough."""
        now = time.time()
        advance = advance_of(summary_of(status, now, is_here=True), now, rate)
        far = (advance.share or 0) >= SHARE and advance.left_seconds is not None
        if self.middle is None and status.phase is Phase.TRAINING and far:
            self.middle = (status, rate, now, self.lines[-LOG_LINES:])

    def event(self, event: Event) -> None:
        """Not in the picture."""

    def note(self, text: str) -> None:
        """Not in the picture."""


def run_example(home: Path) -> tuple[Album, Status, Plan, list[Event]]:
    """The example, run as `windlass run` runs it, with its records below `home`."""
    environ = {name: value for name, value in os.environ.items() if name not in ("WINDLASS_HOME", "XDG_DATA_HOME")}
    context = Context(environ | {"HOME": str(home)}, EXAMPLE, token=lambda: "7f3k2")
    plan = runs.make_plan(read_job("job.yaml", (), {}, context), "local", context)
    album = Album()
    with context.store() as store, Interrupts(can_ask=False) as interrupts:
        engine = engine_class(plan.engine).connect(store)
        engine.submit(plan)
        status = Follower(plan.run_id, engine, album, interrupts, show_logs=True).run()
        return album, status, store.plan(plan.run_id), store.events(plan.run_id)


def draw(album: Album, status: Status, plan: Plan, events: list[Event]) -> str:
    """The picture as SVG."""
    if album.middle is None:
        raise SystemExit("picture: the run was never seen in mid-training")
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    middle, rate, now, lines = album.middle
    console.print(Text.assemble(("$ ", "dim"), ("windlass run job.yaml", "bold")))
    for line in lines:
        console.print(Text.from_ansi(line), no_wrap=True, overflow="ellipsis", crop=True)
    seen = [event for event in events if event.time <= now]
    run = run_of(middle, plan, fold_ledger(seen, now), now, is_here=True)
    console.print(panel(run, now, rate=rate, hint="Ctrl-C: detach or stop", width=WIDTH))
    console.print(Text("… and when it has ended:", style="dim"))
    for line in album.lines[-2:]:
        console.print(Text.from_ansi(line), no_wrap=True, overflow="ellipsis", crop=True)
    os.environ["FORCE_COLOR"] = "1"
    ended = run_of(status, plan, fold_ledger(events, time.time()), time.time(), is_here=True)
    for line in summary_lines(ended, time.time(), painter(sys.stdout)):
        console.print(Text.from_ansi(line), no_wrap=True, overflow="ellipsis", crop=True)
    return console.export_svg(title="windlass", theme=THEME, code_format=SVG, unique_id="live")


def main() -> int:
    """Run, draw and write; gives the exit code."""
    with tempfile.TemporaryDirectory(prefix="windlass-picture-") as folder:
        home = Path(folder)
        os.environ["HOME"] = folder  # so that the picture says ~ and not where it was drawn
        album, status, plan, events = run_example(home)
        if status.phase is not Phase.SUCCEEDED:
            print(f"picture: the run {status.phase}", file=sys.stderr)
            return 1
        svg = draw(album, status, plan, events)
    leaks = [
        word for word in (folder, str(ROOT), "http://", "https://") if word in svg.replace("http://www.w3.org", "")
    ]
    if leaks:
        print(f"picture: {leaks} must not be in it", file=sys.stderr)
        return 1
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")
    print(f"picture: {PICTURE.relative_to(ROOT)}, {PICTURE.stat().st_size // 1024} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
