"""Refuses the arguments of the job; the start of one of its attempts takes longer than the job may."""

import argparse
import os
import time

if os.environ["WINDLASS_ATTEMPT"] == os.environ["SLOW_ATTEMPT"]:
    time.sleep(600)
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
print("epochs", parser.parse_args().epochs)
