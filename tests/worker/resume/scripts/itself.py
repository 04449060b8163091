"""Trains 60 steps, saves every tenth, and resumes by itself like nanoGPT; kills itself once, at step 57."""

import os
import signal
import sys
import time
from pathlib import Path

saved = Path(os.environ["WINDLASS_OUTPUT_DIR"], "step")
begin = 0
if saved.exists():
    begin = int(saved.read_text())
    print(f"Resuming training from {saved.parent}", flush=True)
for step in range(begin + 1, 61):
    print(f"iter {step}: loss {4 / step:.4f}, time 3.1ms", flush=True)
    if step % 10 == 0:
        saved.write_text(str(step))
    if step == 57 and not begin:
        time.sleep(float(sys.argv[1]))
        os.kill(os.getpid(), signal.SIGKILL)
