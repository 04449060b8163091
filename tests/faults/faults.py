"""Faults that are really injected, and runs in which nothing is wrong: the rows of `test_why.py`.

No row writes the message that it wants to be found; each does the thing itself.
"""

from __future__ import annotations

import signal
import sys

from tests.faults.scene import (
    FIXED_PORT,
    SHARED_PORT,
    Fault,
    end_supervisor,
    freeze,
    has_gpu,
    has_module,
    kill_everything,
    kill_node,
    no_gpu,
    no_memory_group,
    no_mounts,
    no_torch,
    not_root,
    port_held,
    remove_interpreter,
    remove_set,
    removed_group,
    replace_store,
    send,
    small_disk,
    stop,
    stop_at_hang,
)

SMALL_SHM = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=2m tmpfs /dev/shm && exec "$@"', "sh")
GLOO = (
    "import datetime, os, sys, time, torch, torch.distributed as dist\n"
    "seconds = datetime.timedelta(seconds={seconds})\n"
)
MEET_SECONDS = 12
"""The time limit of a group where it is to be reached: ranks that start some time apart must meet within it."""
INIT = GLOO + "dist.init_process_group('gloo', timeout=seconds)\nrank = dist.get_rank()\nx = torch.ones(4)\n"
READY_AND_WAIT = "import time\nprint('ready', flush=True)\ntime.sleep(600)\n"


def gloo(body: str, seconds: int = 60) -> str:
    return INIT.replace("{seconds}", str(seconds)) + body


TWO = {"procs_per_node": 2}
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")

FAULTS = (
    # -- the script --
    Fault(
        "an exception in one of four ranks",
        "import os, time\nif os.environ['RANK'] == '2':\n    raise ValueError('bad label 11')\ntime.sleep(300)\n",
        "exception",
        2,
        ("ValueError: bad label 11", "train.py:3"),
        {"nodes": 2, "procs_per_node": 2},
    ),
    Fault(
        "an exception that prints more than is read of the output",
        "def load(batch):\n    raise ValueError(f'bad batch {batch}')\nload(['label'] * 20000)\n",
        "exception",
        0,
        ("ValueError: bad batch ['label'", "train.py:2"),
    ),
    Fault(
        "an exception, then louder ones in the ranks that wait for it",
        gloo("if rank == 1:\n    raise KeyError('weights')\ndist.all_reduce(x)\n"),
        "exception",
        1,
        ("KeyError: 'weights'", "train.py:7"),
        TWO,
        needs=no_torch,
        slow=True,
    ),
    Fault(
        "a server that refuses the connection of a rank for which the others wait",
        gloo(
            "if rank == 1:\n    import urllib.request\n    urllib.request.urlopen('http://127.0.0.1:9')\n"
            "dist.all_reduce(x)\n"
        ),
        "exception",
        1,
        ("URLError: <urlopen error [Errno 111] Connection refused>", "train.py:8"),
        TWO,
        needs=no_torch,
        slow=True,
    ),
    Fault(
        "an exception in a rank whose exit handlers wait for the others",
        "import atexit, os, time\nif os.environ['RANK'] == '1':\n    atexit.register(time.sleep, 600)\n"
        "    raise ValueError('bad label 11')\ntime.sleep(600)\n",
        "exception",
        1,
        ("ValueError: bad label 11", "train.py:4"),
        {"nodes": 2, "timeout": "60s", "grace": "1s"},
    ),
    Fault(
        "an exception, then the time limit while exit handlers run",
        "import atexit, time\natexit.register(time.sleep, 600)\nraise ValueError('bad label 11')\n",
        "exception",
        0,
        ("ValueError: bad label 11", "train.py:3"),
        {"timeout": "10s", "grace": "60s"},
        slow=True,
    ),
    Fault(
        "an exception in a child of another launcher",
        gloo("if rank == 1:\n    raise KeyError('weights')\ndist.all_reduce(x)\n"),
        "exception",
        0,
        ("KeyError: 'weights'", "train.py:7"),
        {"run": None, "command": list(TORCHRUN)},
        needs=no_torch,
        slow=True,
    ),
    Fault(
        "a child of another launcher that was killed",
        gloo("if rank == 1:\n    os.kill(os.getpid(), 9)\ndist.all_reduce(x)\n"),
        "killed",
        0,
        ("SIGKILL",),
        {"run": None, "command": list(TORCHRUN)},
        needs=no_torch,
        slow=True,
    ),
    Fault(
        "a package that is not installed",
        "import cv2\n",
        "module-missing",
        0,
        ("cv2", "opencv-python"),
        needs=has_module("cv2"),
    ),
    Fault(
        "a module of one's own that is not on the path",
        "import helpers_of_mine\n",
        "module-missing",
        0,
        ("PYTHONPATH: src",),
        files={"src/helpers_of_mine.py": ""},
    ),
    Fault(
        "a name that a module does not have",
        "from json import nothing_like_it\n",
        "import-broken",
        0,
        ("nothing_like_it", "version"),
    ),
    Fault(
        "two modules that import each other",
        "import left\n",
        "import-broken",
        0,
        ("each other",),
        files={"left.py": "from right import b\na = 1\n", "right.py": "from left import a\nb = 1\n"},
    ),
    Fault(
        "a library that does not exist",
        "import ctypes\nctypes.CDLL('libnothing_like_it.so.9')\n",
        "library-missing",
        0,
        ("libnothing_like_it.so.9", "LD_LIBRARY_PATH"),
    ),
    Fault(
        "a script that is no Python",
        "import time\nfor step in range(3)\n    print(step)\n",
        "syntax-error",
        0,
        ("train.py:2",),
    ),
    Fault(
        "a script with a NUL, as a crash of the machine leaves it",
        "import time\n\0",
        "syntax-error",
        0,
        ("train.py:2",),
    ),
    Fault(
        "a module that is no Python",
        "import broken\n",
        "syntax-error",
        0,
        ("broken.py:1",),
        files={"broken.py": "def half(:\n"},
    ),
    Fault(
        "arguments that the script does not take",
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--epochs', type=int)\np.parse_args()\n",
        "wrong-arguments",
        0,
        ("--epoks",),
        {"run": "train.py --epoks 3"},
    ),
    Fault("sys.exit(3) without a word", "import sys\nsys.exit(3)\n", "exit-without-output", 0, ("exit code 3",)),
    Fault(
        "an exit code after some words",
        "import sys\nprint('vocabulary of 12 words, 50 needed')\nsys.exit(4)\n",
        "exit-code",
        0,
        ("vocabulary of 12 words", "exit code 4"),
    ),
    Fault(
        "a script whose own watchdog ended it",
        "import faulthandler, time\nfaulthandler.dump_traceback_later(0.5, exit=True)\nprint('loading', flush=True)\n"
        "def load():\n    time.sleep(300)\nload()\n",
        "watchdog",
        0,
        ("train.py:5", "Timeout (0:00:00.5"),
    ),
    Fault(
        "a script that goes on after the stacks of its watchdog, and fails",
        "import faulthandler, sys, time\nfaulthandler.dump_traceback_later(0.1)\ntime.sleep(0.5)\n"
        "sys.exit('vocabulary of 12 words, 50 needed')\n",
        "exit-code",
        0,
        ("vocabulary of 12 words",),
    ),
    Fault(
        "sys.exit after a lost connection that was handled long before",
        "import os, sys, time, traceback\nif os.environ['RANK'] == '0':\n    time.sleep(300)\ntry:\n"
        "    raise ConnectionResetError(104, 'Connection reset by peer')\nexcept OSError:\n"
        "    traceback.print_exc()\nfor shard in range(99):\n    print('shard', shard)\n"
        "sys.exit('vocabulary of 12 words, 50 needed')\n",
        "exit-code",
        1,
        ("vocabulary of 12 words", "exit code 1"),
        TWO,
    ),
    Fault(
        "a loss that became NaN, and a script that notices",
        "import math\nfrom windlass.train import report\nw = 1.0\nfor step in range(1, 2000):\n    w = w * w * 3\n"
        "    loss = w - w\n    report(step=step, total=2000, loss=loss)\n    if math.isnan(loss):\n"
        "        raise FloatingPointError(f'loss is {loss} at step {step}')\n",
        "nan-loss",
        0,
        ("learning rate", "the first one that was not finite: nan at step 10", "the last good one: 0.0 at step 9"),
    ),
    Fault(
        "a loss that became NaN, and a script that goes on to the end",
        "from windlass.train import report\nw = 2.0\nfor step in range(1, 21):\n    w = w * w * 1e30\n"
        "    report(step=step, total=20, loss=w - w)\n",
        "nan-loss",
        0,
        ("learning rate", "the first one that was not finite: nan at step 4", "the last good one: 0.0 at step 3"),
    ),
    # -- files, rights, limits --
    Fault(
        "a file of data that does not exist",
        "open('data/trian.csv')\n",
        "file-missing",
        0,
        ("data/trian.csv", "did you mean data/train.csv"),
        files={"data/train.csv": "1,2\n"},
    ),
    Fault(
        "a file that may not be read",
        "import os\nos.chmod('secret.csv', 0o600)\nos.setuid(65534)\nopen('secret.csv')\n",
        "permission-denied",
        0,
        ("secret.csv",),
        files={"secret.csv": ""},
        needs=not_root,
    ),
    Fault(
        "a checkpoint that was cut short",
        "import pickle\ndata = pickle.dumps(list(range(9999)))\n"
        "open('last.ckpt', 'wb').write(data[:5000])\npickle.load(open('last.ckpt', 'rb'))\n",
        "file-corrupt",
        0,
        ("damaged",),
    ),
    Fault(
        "a checkpoint of another model",
        "import torch\nstate = torch.nn.Linear(4, 2).state_dict()\ntorch.nn.Linear(8, 2).load_state_dict(state)\n",
        "checkpoint-mismatch",
        0,
        ("does not fit",),
        needs=no_torch,
        slow=True,
    ),
    Fault(
        "a full disk",
        "import os\nwith open(os.environ['WINDLASS_OUTPUT_DIR'] + '/model.bin', 'wb') as file:\n"
        "    for _ in range(64):\n        file.write(bytes(65536))\n        file.flush()\n",
        "disk-full",
        0,
        ("no space was left on /", "results had", "checkpoint: {keep: 1}"),
        {"outputs": "results"},
        needs=no_mounts,
        around=small_disk,
    ),
    Fault(
        "a full disk under torch.save",
        "import os, torch\ntorch.save(torch.ones(1_000_000), os.environ['WINDLASS_OUTPUT_DIR'] + '/model.pt')\n",
        "disk-full",
        0,
        ("no space was left on /", "results had"),
        {"outputs": "results"},
        needs=lambda: no_mounts() or no_torch(),
        around=small_disk,
        slow=True,
    ),
    Fault(
        "shared memory that is full",
        "with open('/dev/shm/batch', 'wb') as file:\n    file.write(bytes(8_000_000))\n",
        "shm-full",
        0,
        ("/dev/shm", "fewer DataLoader workers"),
        {"start": "cold"},
        needs=no_mounts,
        wrap=SMALL_SHM,
    ),
    Fault(
        "shared memory that is full, found out by a bus error",
        "from multiprocessing import shared_memory\nblock = shared_memory.SharedMemory(create=True, size=8_000_000)\n"
        "block.buf[:] = bytes(8_000_000)\n",
        "shm-full",
        0,
        ("/dev/shm",),
        {"start": "cold"},
        needs=no_mounts,
        wrap=SMALL_SHM,
    ),
    Fault(
        "too many open files",
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "kept = [open('/dev/null') for _ in range(100)]\n",
        "too-many-files",
        0,
        ("ulimit -n",),
    ),
    Fault(
        "no more processes",
        "import os, resource, threading, time\n"
        "resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))\nos.setuid(65534)\n"
        "threading.Thread(target=time.sleep, args=(5,)).start()\n",
        "too-many-processes",
        0,
        ("ulimit -u",),
        needs=not_root,
    ),
    Fault(
        "memory that is refused",
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))\n"
        "kept = [bytearray(50 << 20) for _ in range(20)]\n",
        "out-of-memory",
        0,
        ("batch",),
    ),
    Fault(
        "an array larger than memory",
        "import numpy as np\nnp.ones((10**8, 10**8))\n",
        "out-of-memory",
        0,
        ("train.py:2",),
    ),
    Fault(
        "a killed rank: out of memory",
        "import os\ngroup = os.environ['WHY_GROUP']\nos.makedirs(group, exist_ok=True)\n"
        "v1 = os.path.exists(group + '/memory.limit_in_bytes')\n"
        "open(group + ('/memory.limit_in_bytes' if v1 else '/memory.max'), 'w').write(str(64 << 20))\n"
        "open(group + '/cgroup.procs', 'w').write(str(os.getpid()))\n"
        "kept = []\nfor _ in range(400):\n    kept.append(b'x' * (1 << 20))\nprint('still here')\n",
        "oom-killed",
        0,
        ("memory",),
        needs=no_memory_group,
        around=removed_group,
    ),
    Fault(
        "a limit of CPU time",
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 60))\nwhile True:\n    pass\n",
        "limit-reached",
        0,
        ("ulimit -t",),
        slow=True,
    ),
    Fault(
        "a file that grows too large",
        "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
        "open('big.bin', 'wb').write(bytes(1 << 20))\n",
        "limit-reached",
        0,
        ("ulimit -f",),
    ),
    Fault(
        "a host that cannot be reached",
        "import urllib.request\nurllib.request.urlopen('http://data.nowhere.invalid/set.tar', timeout=5)\n",
        "network-unreachable",
        0,
        ("data:",),
    ),
    # -- crashes and signals --
    Fault(
        "a crash in native code",
        "import ctypes, os, time\nif os.environ['RANK'] == '1':\n    ctypes.string_at(0)\ntime.sleep(300)\n",
        "segfault",
        1,
        ("train.py:3", "SIGSEGV"),
        TWO,
    ),
    Fault("native code that aborts", "import ctypes\nctypes.CDLL(None).abort()\n", "native-abort", 0, ("train.py:2",)),
    Fault(
        "kill -9 of a rank", READY_AND_WAIT, "killed", 1, ("SIGKILL", "no OOM kill"), TWO, act=send(signal.SIGKILL, 1)
    ),
    Fault("SIGTERM to a rank from outside", READY_AND_WAIT, "signal", 0, ("SIGTERM",), act=send(signal.SIGTERM, 0)),
    Fault("SIGINT to a rank from outside", READY_AND_WAIT, "interrupted", 0, ("SIGINT",), act=send(signal.SIGINT, 0)),
    Fault(
        "kill -9 of a node's worker",
        READY_AND_WAIT,
        "node-killed",
        None,
        ("node 1", "node-loss"),
        {"nodes": 2},
        act=kill_node,
    ),
    Fault("kill -9 of everything", READY_AND_WAIT, "lost", None, ("killed",), act=kill_everything),
    # -- beginnings --
    Fault(
        "a data set that went between plan and start",
        READY_AND_WAIT,
        "data-not-staged",
        None,
        ("/set: there is no such folder", "windlass resume"),
        {"data": [{"name": "digits", "source": "file://{folder}/set"}]},
        {"set/one": "1"},
        between=remove_set,
    ),
    Fault(
        "outputs whose place cannot be written",
        "print('trains')\n",
        "outputs-not-uploaded",
        None,
        ("/store/", "windlass resume"),
        {"outputs": "file://{folder}/store"},
        between=replace_store,
    ),
    Fault(
        "a port that another program took between plan and start",
        READY_AND_WAIT,
        "port-taken",
        None,
        (str(FIXED_PORT), "leave local.port out"),
        {"local": {"port": FIXED_PORT}},
        around=port_held,
    ),
    Fault(
        "a port that the script needs and another program has",
        f"import socket\nserver = socket.socket()\nserver.bind(('0.0.0.0', {FIXED_PORT}))\n",
        "port-taken",
        0,
        ("MASTER_PORT",),
        around=port_held,
    ),
    Fault(
        "a port that two ranks want",
        f"import socket, time\nserver = socket.socket()\nserver.bind(('0.0.0.0', {SHARED_PORT}))\nserver.listen()\n"
        "time.sleep(600)\n",
        "port-taken",
        None,
        (f"port {SHARED_PORT} that rank", f"listens on port {SHARED_PORT}", "LOCAL_RANK"),
        TWO,
    ),
    Fault(
        "MASTER_PORT, which is kept for the process group, bound by a tracker",
        "import os, socket\nserver = socket.socket()\nserver.bind(('0.0.0.0', int(os.environ['MASTER_PORT'])))\n",
        "port-taken",
        0,
        ("Windlass keeps it", "launcher: plain"),
        {"launcher": "torchrun"},
    ),
    Fault(
        "an interpreter that went between plan and start",
        READY_AND_WAIT,
        "interpreter-missing",
        None,
        ("env/bin/python",),
        {"python": "env/bin/python"},
        between=remove_interpreter,
    ),
    Fault(
        "a program whose interpreter does not exist",
        "",
        "program-missing",
        0,
        ("work.sh", "#!"),
        {"run": None, "command": ["./work.sh"]},
        files={"work.sh": "#!/opt/nowhere/bash\necho hello\n"},
    ),
    Fault(
        "a file that is no program",
        "",
        "could-not-start",
        0,
        ("#!/bin/sh",),
        {"run": None, "command": ["./work.bin"]},
        files={"work.bin": "\x01\x02\x03 no program\n"},
    ),
    Fault(
        "a command that the shell does not find",
        "",
        "program-missing",
        0,
        ("trainn",),
        {"run": None, "command": ["sh", "-c", "trainn --fast"]},
    ),
    Fault(
        "a script without the right to be run",
        "",
        "permission-denied",
        0,
        ("chmod",),
        {"run": None, "command": ["sh", "-c", "./data.txt"]},
        files={"data.txt": "echo\n"},
    ),
    # -- ranks together --
    Fault(
        "ranks that disagree on a shape",
        gloo("dist.all_reduce(torch.ones(4 + rank))\n"),
        "collective-mismatch",
        None,
        ("all_reduce", "train.py:6"),
        TWO,
        needs=no_torch,
    ),
    Fault(
        "ranks that disagree on a type, with torch looking",
        gloo("dist.all_reduce(x if rank else x.double())\n"),
        "collective-mismatch",
        None,
        ("Double", "Float"),
        {**TWO, "env": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}},
        needs=no_torch,
        slow=True,  # its variable means a warm process of its own, which imports torch
    ),
    Fault(
        "ranks that call different collectives",
        gloo("if rank == 0:\n    dist.all_reduce(x)\nelse:\n    dist.broadcast(x, 0)\n", MEET_SECONDS),
        "collective-mismatch",
        None,
        ("all_reduce", "broadcast"),
        TWO,
        needs=no_torch,
        slow=True,
    ),
    Fault(
        "a rank that leaves early",
        gloo("if rank == 1:\n    sys.exit(0)\ndist.all_reduce(x)\n"),
        "rank-left-early",
        1,
        ("exit code 0", "all_reduce"),
        TWO,
        needs=no_torch,
    ),
    Fault(
        "a rank that never joins, until the time limit",
        gloo("if rank == 1:\n    time.sleep(60)\ndist.all_reduce(x)\n"),
        "collective-not-joined",
        1,
        ("all_reduce", "train.py:7"),
        {**TWO, "hang": "1s", "timeout": "25s"},
        needs=no_torch,
        slow=True,
    ),
    Fault(
        "a rank that never joins, until torch gives up",
        gloo("if rank == 1:\n    time.sleep(600)\ndist.all_reduce(x)\n", MEET_SECONDS),
        "collective-not-joined",
        1,
        ("all_reduce", "train.py:7"),
        TWO,
        needs=no_torch,
        slow=True,
    ),
    Fault(
        "a rank that never joins, on two nodes, until it is stopped",
        gloo("print('ready', flush=True)\nif rank == 1:\n    time.sleep(60)\ndist.all_reduce(x)\n"),
        "collective-not-joined",
        1,
        ("all_reduce", "train.py:8"),
        {"nodes": 2, "hang": "1s"},
        needs=no_torch,
        slow=True,
        act=stop_at_hang,
    ),
    Fault(
        "ranks that never meet, and train alone",
        "import torch\nmodel = torch.nn.Linear(2, 1)\nmodel(torch.ones(1, 2)).sum().backward()\n",
        "ranks-alone",
        None,
        ("init_process_group", "launcher: plain"),
        {"nodes": 2},
        needs=no_torch,
    ),
    Fault(
        "a rank that is suspended",
        gloo("print('ready', flush=True)\nwhile True:\n    dist.all_reduce(x)\n    time.sleep(0.05)\n"),
        "rank-frozen",
        1,
        ("SIGSTOP", "kill -CONT"),
        {**TWO, "hang": "3s", "grace": "1s"},
        needs=no_torch,
        slow=True,
        act=freeze,
    ),
    Fault(
        "a world that is larger in the script",
        GLOO.replace("{seconds}", str(MEET_SECONDS))
        + "dist.init_process_group('gloo', timeout=seconds, world_size=3, rank=int(os.environ['RANK']))\n",
        "world-size-mismatch",
        None,
        ("3 ranks", "has 2"),
        TWO,
        needs=no_torch,
        slow=True,
    ),
    Fault(
        "a rank that never comes to the meeting",
        GLOO.replace("{seconds}", str(MEET_SECONDS))
        + "if os.environ['RANK'] == '1':\n    time.sleep(600)\ndist.init_process_group('gloo', timeout=seconds)\n",
        "rendezvous-timeout",
        1,
        ("init_process_group",),
        TWO,
        needs=no_torch,
        slow=True,
    ),
    Fault(
        "a DataLoader's worker that dies",
        "import os, torch\n\n\nclass Data(torch.utils.data.Dataset):\n"
        "    def __len__(self):\n        return 8\n\n    def __getitem__(self, at):\n        os._exit(9)\n\n\n"
        "for batch in torch.utils.data.DataLoader(Data(), num_workers=1):\n    pass\n",
        "dataloader-worker-died",
        0,
        ("num_workers=0",),
        needs=no_torch,
    ),
    Fault(
        "no GPU where the script wants one",
        "import torch\ntorch.ones(2).cuda()\n",
        "gpu-not-visible",
        0,
        ("resources: {gpus: 1}",),
        needs=lambda: no_torch() or has_gpu(),
    ),
    Fault(
        "NCCL without a GPU",
        "import torch.distributed as dist\ndist.init_process_group('nccl')\ndist.barrier()\n",
        "gpu-not-visible",
        0,
        ("gloo",),
        {"launcher": "torchrun"},
        needs=lambda: no_torch() or has_gpu(),
    ),
    Fault(
        "more than the GPU's memory",
        "import torch\ntorch.empty(1 << 42, device='cuda')\n",
        "gpu-out-of-memory",
        0,
        ("16384.00 GiB", "train.py:2"),
        needs=no_gpu,
    ),
    Fault(
        "an index out of range in a CUDA kernel",
        "import torch\ntable, index = torch.ones(4, device='cuda'), torch.tensor([9], device='cuda')\n"
        "print(table[index].sum().item())\n",
        "gpu-error",
        0,
        ("CUDA_LAUNCH_BLOCKING", "train.py:3"),
        needs=no_gpu,
    ),
    Fault(
        "two ranks of NCCL on one GPU",
        "import torch, torch.distributed as dist\ntorch.cuda.set_device(0)\ndist.init_process_group('nccl')\n"
        "dist.all_reduce(torch.ones(1, device='cuda'))\ntorch.cuda.synchronize()\n",
        "gpu-shared",
        None,
        ("LOCAL_RANK",),
        TWO,
        needs=no_gpu,
    ),
    Fault(
        "more ranks than GPUs",
        "import os, torch\ntorch.cuda.set_device(int(os.environ['LOCAL_RANK']))\ntorch.ones(1).cuda()\n",
        "gpu-ordinal-invalid",
        None,
        ("train.py:2", "procs_per_node"),
        {"procs_per_node": 16},
        needs=no_gpu,
    ),
    Fault(
        "CUDA in a worker that was forked",
        "import torch\nfrom torch.utils.data import DataLoader\n\n\nclass Data(torch.utils.data.Dataset):\n"
        "    def __len__(self):\n        return 8\n\n    def __getitem__(self, at):\n"
        "        return torch.ones(1, device='cuda')\n\n\n"
        "torch.ones(1, device='cuda')\nfor batch in DataLoader(Data(), num_workers=1):\n    pass\n",
        "cuda-after-fork",
        0,
        ("spawn",),
        needs=no_gpu,
    ),
    Fault(
        "a CUDA kernel that does not end",
        "import torch\nprint('ready', flush=True)\ntorch.cuda._sleep(1 << 42)\ntorch.cuda.synchronize()\n",
        "hang",
        0,
        ("train.py:4",),
        {"hang": "1s", "timeout": "15s"},
        needs=no_gpu,
        slow=True,
    ),
    # -- ends from outside, and silence --
    Fault("a stop by the user", READY_AND_WAIT, "stopped", None, ("stopped by the user",), act=stop),
    Fault(
        "the same batch that fails again after each restart",
        "print('::windlass {\"step\": 3}', flush=True)\nraise ValueError('label 11 of 10')\n",
        "same-step-twice",
        0,
        ("ValueError: label 11 of 10", "step 3", "attempt 2", "train.py:2"),
        {"restarts": 5},
    ),
    Fault("a machine that goes down", READY_AND_WAIT, "stopped", None, ("from outside",), act=end_supervisor),
    Fault(
        "the time limit",
        "import itertools, time\nfor step in itertools.count():\n    print('step', step, flush=True)\n"
        "    time.sleep(0.1)\n",
        "timeout",
        None,
        ("8 s", "timeout:"),
        {"timeout": "8s"},
        slow=True,
    ),
    Fault(
        "the time limit of a script that never printed",
        "import time\ntime.sleep(60)\n",
        "never-printed",
        None,
        ("train.py:2",),
        {"timeout": "8s"},
        slow=True,
    ),
    Fault(
        "a script that hangs",
        "import threading\nprint('ready', flush=True)\nthreading.Lock().acquire()\n"
        "lock = threading.Lock()\nlock.acquire()\nlock.acquire()\n",
        "hang",
        0,
        ("train.py:6",),
        {"hang": "1s", "timeout": "15s"},
        slow=True,
    ),
)

HEALTHY = (
    Fault("hello", "print('hello')\n", "none"),
    Fault("not a word, exit code 0", "pass\n", "none"),
    Fault(
        "words that frighten",
        "print('Error: 0\\nloss is not nan\\nTraceback (most recent call last)\\nKilled\\n"
        "CUDA out of memory is what we avoid\\nNo space left on device: never')\n",
        "none",
        job=TWO,
    ),
    Fault(
        "an exception that is handled",
        "import traceback\ntry:\n    open('nowhere.txt')\nexcept OSError:\n"
        "    traceback.print_exc()\nprint('went on')\n",
        "none",
    ),
    Fault(
        "a child that is killed, and is meant to be",
        "import os, signal, subprocess\n"
        "child = subprocess.Popen(['sleep', '60'])\nchild.kill()\nassert child.wait() == -9\n",
        "none",
    ),
    Fault(
        "a forked child that fails, and is meant to",
        "import os, sys, time\nif os.fork() == 0:\n    sys.exit(3)\nos.wait()\ntime.sleep(1)\n",
        "none",
        job={"grace": "100ms"},
    ),
    Fault(
        "the master port bound by the tracker of a launcher: plain job",
        "import os, socket\nserver = socket.socket()\n"
        "server.bind(('0.0.0.0', int(os.environ['WINDLASS_MASTER_PORT'])))\n"
        "server.listen()\n",
        "none",
        job={"launcher": "plain"},
    ),
    Fault(
        "ranks that are meant to work alone",
        "import torch\nprint(torch.ones(2).sum())\n",
        "none",
        job={**TWO, "launcher": "plain"},
        needs=no_torch,
    ),
    Fault(
        "ranks that meet by a store of their own",
        "import datetime, os, torch\nfrom torch.distributed import TCPStore\n"
        "store = TCPStore(os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']), 2, os.environ['RANK'] == '0',\n"
        "                 datetime.timedelta(seconds=60))\nprint(torch.ones(2), store.add('there', 1))\n",
        "none",
        job=TWO,
        needs=no_torch,
    ),
    Fault(
        "ranks that do not use torch",
        "import json\nprint(json.dumps({'loss': 1}))\n",
        "none",
        job=TWO,
    ),
    Fault(
        "a restart, then success",
        "import os, sys\nsys.exit(1 if os.environ['WINDLASS_ATTEMPT'] == '1' else 0)\n",
        "none",
        job={"restarts": 1},
    ),
    Fault(
        "sys.exit(0), and threads that end late",
        "import sys, threading, time\nthreading.Thread(target=time.sleep, args=(0.3,)).start()\nsys.exit(0)\n",
        "none",
    ),
    Fault(
        "a loss that falls",
        "from windlass.train import report\nfor step in range(1, 6):\n    report(step=step, total=5, loss=1 / step)\n",
        "none",
    ),
    Fault(
        "two nodes of two ranks that sum",
        gloo("dist.all_reduce(x)\nassert x.sum() == 16\ndist.destroy_process_group()\n"),
        "none",
        job={"nodes": 2, **TWO},
        needs=no_torch,
    ),
    Fault(
        "a long silence, then words",
        "import time\nprint('before', flush=True)\ntime.sleep(2.2)\nprint('after')\n",
        "none",
        job={"hang": "1s"},
        slow=True,
    ),
    Fault(
        "only rank 0 prints",
        "import os, time\nfor _ in range(10):\n    time.sleep(0.25)\n"
        "    if os.environ['RANK'] == '0':\n        print('step', flush=True)\n",
        "none",
        job={"nodes": 2, "hang": "1s"},
        slow=True,
    ),
)


def table() -> str:
    """The rows as the page shows them."""
    rows = [f"| {row.name} | `{row.verdict}` | {'–' if row.rank is None else row.rank} |" for row in FAULTS]
    healthy = "\n".join(f"- {row.name}" for row in HEALTHY)
    return "\n".join(["| what is wrong | verdict | rank |", "|---|---|---|", *rows]) + "\n\n" + HEALTHY_HEAD + healthy


HEALTHY_HEAD = "In these runs `why` finds nothing wrong:\n\n"
