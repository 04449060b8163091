"""Notes SIGTERM, saves at the end of a step; its evaluation is a step of ten minutes."""

import os
import signal
import time

import torch

folder, asked = os.environ["WINDLASS_CHECKPOINT_DIR"], False


def note(*_):
    global asked
    asked = True
    print("SIGTERM: saving at the end of this step", flush=True)


signal.signal(signal.SIGTERM, note)
for step in range(1, 100):
    print(f"step {step}/100 loss {1 / step:.3f}", flush=True)
    if step == 5:
        print("evaluating", flush=True)
        until = time.time() + 600
        while time.time() < until:
            time.sleep(0.5)
    if asked:
        torch.save({"step": step}, os.path.join(folder, f"step-{step}.pt"))
        break
