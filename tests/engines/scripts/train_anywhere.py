"""Imports Windlass's modules for scripts, under an interpreter in which Windlass is not installed."""

import sys

import windlass.train

windlass.train.report(step=3, total=4, loss=0.5)
print("by", sys.executable, f"{sys.version_info[0]}.{sys.version_info[1]}")
