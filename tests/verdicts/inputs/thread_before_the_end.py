"""A thread fails, the script goes on, and ends for another reason."""

import sys
import threading


def prefetch():
    raise OSError("the cache was dropped")


thread = threading.Thread(target=prefetch)
thread.start()
thread.join()
for step in range(1, 4):
    print(f"step {step}/3 loss {1 / step:.3f}", flush=True)
sys.exit("config.toml has no section [model]")
