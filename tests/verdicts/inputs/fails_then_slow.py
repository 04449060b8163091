"""Fails at a step in attempt 1, and is too slow for its time limit in attempt 2."""

import os
import time

for step in range(1, 1000):
    print(f"step {step} loss {1 / step:.3f}", flush=True)
    time.sleep(0.1)
    if step == 3 and os.environ["WINDLASS_ATTEMPT"] == "1":
        raise ValueError(f"label 11 of 10 in batch {step}")
