"""Ends by sys.exit with a sentence."""

import sys
import time

print("reading the configuration at", time.time(), flush=True)
sys.exit("config.toml has no section [train]")
