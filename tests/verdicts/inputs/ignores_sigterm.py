"""Ignores SIGTERM."""

import signal
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
for step in range(1, 10000):
    print(f"step {step}/10000 loss {1 / step:.3f}", flush=True)
    time.sleep(0.05)
