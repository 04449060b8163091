from __future__ import annotations

from pathlib import Path

import pytest

from windlass.code.process_group import needs_variables
from windlass.spec.job import Job

NANOGPT = """
import os, torch.distributed as dist
ddp = int(os.environ.get('RANK', -1)) != -1
if ddp:
    dist.init_process_group(backend='nccl')
    rank = int(os.environ['RANK'])
"""
DETR = """
import os, torch
def init_distributed_mode(args):
    if 'RANK' in os.environ:
        args.rank = int(os.environ['RANK'])
    else:
        print('Not using distributed mode')
        args.distributed = False
        return
    torch.distributed.init_process_group('nccl')
init_distributed_mode(args)
"""
SPAWNS = """
import torch.multiprocessing as mp, torch.distributed as dist
def worker(rank, world_size):
    dist.init_process_group('gloo', rank=rank, world_size=world_size)
mp.spawn(worker, args=(2,), nprocs=2)
"""
ASKS = """
import os, torch.distributed as dist
if 'RANK' not in os.environ:
    raise SystemExit('start it with torchrun')
dist.init_process_group()
"""
FUNCTIONS = """
import torch.distributed as dist
class Trainer:
    def __init__(self):
        self.setup()
    def setup(self):
        with something():
            dist.init_process_group('gloo')
def main():
    trainer = Trainer()
if __name__ == '__main__':
    main()
"""


@pytest.mark.parametrize(
    ("script", "need"),
    [
        ("import torch.distributed as dist\ndist.init_process_group('gloo')\n", ("calls init_process_group", 2)),
        (
            "from torch.distributed import init_process_group as i, init_process_group\ninit_process_group()\n",
            ("calls init_process_group", 2),
        ),
        (FUNCTIONS, ("calls init_process_group", 8)),
        (ASKS, ("calls init_process_group", 5)),
        ("import os\nrank = int(os.environ['LOCAL_RANK'])\n", ("reads os.environ['LOCAL_RANK']", 2)),
        ("import os\nos.environ['RANK'] = '0'\n", None),
        ("import deepspeed\nengine, *_ = deepspeed.initialize(model=m)\n", ("calls initialize", 2)),
        ("import wandb\nwandb.initialize()\n", None),
        ("import torch.distributed as d\nd.init_process_group('gloo', init_method='tcp://x:1', rank=0)\n", None),
        ("import torch.distributed as d\nd.init_process_group('gloo', **options)\n", None),
        ("import torch.distributed as d\ntry:\n    d.init_process_group()\nexcept ValueError:\n    pass\n", None),
        ("x = torch.distributed.init_process_group() if many else None\n", None),
        ("def recursive():\n    recursive()\nrecursive()\n", None),
        ("def broken(:\n", None),
        (NANOGPT, None),
        (DETR, None),
        (SPAWNS, None),
    ],
)
def test_only_a_call_on_every_path_needs_the_variables(
    tmp_path: Path, script: str, need: tuple[str, int] | None
) -> None:
    (tmp_path / "ddp.py").write_text(script)
    found = needs_variables(Job(name="a", run="ddp.py"), tmp_path)
    assert (found and (found.what, found.line)) == need


def test_call_may_be_in_a_local_file_that_the_script_imports(tmp_path: Path) -> None:
    (tmp_path / "ddp.py").write_text("from tools.group import start\nstart()\n")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "group.py").write_text(
        "import torch\ndef start():\n    torch.distributed.init_process_group()\n"
    )
    found = needs_variables(Job(name="a", run="-m ddp"), tmp_path)
    assert found == ("calls init_process_group", "group.py", 3)
