"""Refuses the arguments of the job in attempts 1 and 2; in attempt 3 its start takes longer than the job may."""

import argparse
import os
import time

if os.environ["WINDLASS_ATTEMPT"] == "3":
    time.sleep(600)
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
print("epochs", parser.parse_args().epochs)
