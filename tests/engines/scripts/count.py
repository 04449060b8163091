"""Writes a number of lines at a given rate per second."""

import os
import sys
import time

for number in range(int(sys.argv[1])):
    print(f"line {number} of rank {os.environ['RANK']}", flush=True)
    time.sleep(0.02)
