"""Prints the output of `why` for each injected fault, also if several processes have injected them."""

from __future__ import annotations

from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [report for name in ("passed", "failed") for report in terminalreporter.stats.get(name, ())]
    told = [dict(report.user_properties) for report in reports]
    rows = sorted((row["why"] for row in told if "why" in row), key=str)
    if not rows:
        return
    terminalreporter.write_line("")
    for name, expected, found, seconds in rows:
        terminalreporter.write_line(f"{name:66} {expected:24} {found:24} {seconds:5.2f} s")
    right = sum(expected == found for _, expected, found, _ in rows)
    slowest = max(row[3] for row in rows)
    terminalreporter.write_line(f"{right} of {len(rows)} right; slowest verdict {slowest:.2f} s")
