"""Saves files that are cut off, and is killed: the restart finds none that is verified."""

import os
import signal
import sys
import time

begin = int(sys.argv[sys.argv.index("--resume") + 1].rpartition("step_")[2][:-3]) if "--resume" in sys.argv else 0
for step in range(begin + 1, 21):
    print(f"step {step}/20 loss {1 / step:.3f}", flush=True)
    with open(f"{os.environ['WINDLASS_CHECKPOINT_DIR']}/step_{step}.pt", "wb") as file:
        file.write(b"PK\x03\x04 cut off")
    time.sleep(0.05)
    if step == 12 and os.environ["WINDLASS_ATTEMPT"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
