"""The loss is infinite in one step, as where a GradScaler finds its scale, and finite from then on."""

import time

for step in range(1, 41):
    loss = float("inf") if step == 3 else 1 / step
    print(f"step {step}/40 loss {loss:.4f}", flush=True)
    time.sleep(0.05)
