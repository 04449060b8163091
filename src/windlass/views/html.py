"""Renders a run as an HTML table for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windlass.runs.record import Status


def run_table(status: Status, now: float) -> str:
    """Returns an HTML table with a run's target, phase, duration, progress, and location of results."""
    seconds = (now if status.times.ended_at is None else status.times.ended_at) - status.times.created_at
    progress = {name: getattr(status.progress, name) for name in ("step", "total", "epoch", "loss")}
    rows = {
        "run": status.id,
        "phase": status.phase.value,
        "target": status.target,
        "time": f"{seconds:,.0f} s",
        "progress": ", ".join(f"{name} {value}" for name, value in progress.items() if value is not None),
        "waits for": status.waits_for or "",
        "cause": status.cause.summary if status.cause is not None else "",
        "output": status.output_dir,
        "note": status.about.note,
    }
    cells = (f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in rows.items() if text)
    return f"<table>{''.join(cells)}</table>"
