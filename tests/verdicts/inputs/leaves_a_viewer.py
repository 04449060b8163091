"""Leaves TensorBoard behind."""

import subprocess

subprocess.Popen(["tensorboard", "60"], executable="/bin/sleep")
for step in range(1, 6):
    print(f"step {step}/5 loss {1 / step:.3f}", flush=True)
