"""Time of training steps of 1 and 10 ms with `windlass.train.report` in each step, as a ratio to steps without it.

All times are CPU times of the thread, so that other processes do not count. The lines of `report` go to a process that
reads them, as under Windlass. The goal is a ratio of at most 1.02.

    python bench/report.py [RUNS] [--smoke]
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from functools import partial

import torch
from common import in_turn, machine, medians, report, start

from windlass.train.report import Reporter

PEER = "without report"
TRIAL_SECONDS, SMOKE_SECONDS = 1.0, 0.2
ENVIRON = {"WINDLASS_RUN_ID": "bench-1"}


def trial(num_steps: int, step_seconds: float, call: Callable[[int], None]) -> float:
    """Returns the CPU seconds of one step, the mean of `num_steps` that each compute for `step_seconds` and call."""
    began = time.thread_time()
    for step in range(num_steps):
        until = time.thread_time() + step_seconds
        while time.thread_time() < until:
            pass
        call(step)
    return (time.thread_time() - began) / num_steps


def main(runs: int, smoke: bool) -> None:
    """Prints the step times without `report`, with a loss, and with five values of which two are tensors."""
    seconds = SMOKE_SECONDS if smoke else TRIAL_SECONDS
    loss, norm = torch.tensor(0.5), torch.tensor(1.5)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as reader:
        assert reader.stdin is not None
        reporter = Reporter(time.thread_time, environ={**os.environ, **ENVIRON}, fd=reader.stdin.fileno())
        ways: dict[str, Callable[[int], None]] = {
            PEER: lambda step: None,
            "a loss": lambda step: reporter.report(step, loss=0.5 / (step + 1)),
            "five values": lambda step: reporter.report(
                step, loss=loss, epoch=1, lr=0.1 / (step + 1), norm=norm, acc=0.5
            ),
        }
        for step_seconds in (0.001, 0.01):
            trials = {way: partial(trial, round(seconds / step_seconds), step_seconds, ways[way]) for way in ways}
            title = f"Steps of {step_seconds * 1000:g} ms, {medians(runs)} ({machine()})"
            report(in_turn(trials, runs), peer=PEER, title=title, figure="s per step")


if __name__ == "__main__":
    start(main, runs=5)
