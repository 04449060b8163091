"""The shape of nanoGPT's train.py: settings at the top level, `--name=value` overrides, DDP only where RANK is set."""
# mypy: ignore-errors

import os
import signal
import sys
from ast import literal_eval
from pathlib import Path

import torch

out_dir = "out"
init_from = "scratch"
max_iters = 12
eval_interval = 4
kill_at = -1  # where the test ends this process, in its first attempt
for arg in sys.argv[1:]:
    key, val = arg.removeprefix("--").split("=")
    assert key in globals(), f"Unknown config key: {key}"
    try:
        globals()[key] = literal_eval(val)
    except (SyntaxError, ValueError):
        globals()[key] = val

ddp = int(os.environ.get("RANK", -1)) != -1
print(f"ddp {ddp}, init_from {init_from}", flush=True)
if ddp:
    torch.distributed.init_process_group(backend="nccl")  # as it stands there: no CPU takes this way
ckpt = Path(out_dir, "ckpt.pt")
ckpt.parent.mkdir(exist_ok=True)
torch.manual_seed(1337)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
iter_num = 0
if init_from == "resume":
    checkpoint = torch.load(ckpt, weights_only=True)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]
inputs = torch.randn(32, 8)
while iter_num < max_iters:
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(f"iter {iter_num}: loss {loss.item():.4f}, time 1.00ms", flush=True)
    iter_num += 1
    if iter_num % eval_interval == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}
        torch.save(state, ckpt)
    if iter_num == kill_at and init_from == "scratch":
        os.kill(os.getpid(), signal.SIGKILL)
