"""Imports what scripts may import of Windlass, under an interpreter that does not have it."""

import sys

import windlass.train

windlass.train.report(step=3, total=4, loss=0.5)
print("by", sys.executable, f"{sys.version_info[0]}.{sys.version_info[1]}")
