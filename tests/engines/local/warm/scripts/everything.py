"""Prints as one line of JSON everything that a script can observe about its process."""

import atexit
import faulthandler
import gc
import inspect
import json
import locale
import logging
import multiprocessing
import os
import pickle
import random
import resource
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy
import torch
import torch._dynamo  # imported by the first DDP and the first optimizer anyway

BEGAN = time.time()


class Point:
    def __init__(self, x: int) -> None:
        self.x = x


def stream(file: Any) -> dict[str, Any]:
    about = os.fstat(file.fileno())
    return {
        "type": f"{type(file).__module__}.{type(file).__name__}",
        "repr": repr(file),
        "buffer": type(file.buffer).__name__,
        "encoding": file.encoding,
        "errors": file.errors,
        "newlines": str(file.newlines),
        "line_buffering": file.line_buffering,
        "write_through": file.write_through,
        "mode": file.mode,
        "seekable": file.seekable(),
        "isatty": file.isatty(),
        "name": file.name,
        "kind": oct(about.st_mode & 0o170000),
        "same": file is getattr(sys, "__" + file.name.strip("<>") + "__"),
    }


def proc(name: str) -> list[bytes]:
    with open(f"/proc/self/{name}", "rb") as file:
        return file.read().rstrip(b"\0").split(b"\0")


def status() -> dict[str, str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {name: value for name, _, value in (line.partition(":\t") for line in lines)}


def blas_threads() -> list[tuple[str, int]]:
    import threadpoolctl  # type: ignore[import-untyped]

    return sorted((entry["internal_api"], entry["num_threads"]) for entry in threadpoolctl.threadpool_info())


def descriptors() -> list[int]:
    found = []
    for number in range(256):
        try:
            os.fstat(number)
            found.append(number)
        except OSError:
            pass
    return found


def handler(number: int) -> str:
    found = signal.getsignal(number)
    return str(getattr(found, "__name__", found))


main = sys.modules["__main__"]
parent_alive = Path(f"/proc/{os.getppid()}").exists()
line = status()
seen = {
    "argv": sys.argv,
    "orig_argv": sys.orig_argv,
    "executable": sys.executable,
    "prefix": sys.prefix,
    "flags": repr(sys.flags),
    "xoptions": sys._xoptions,
    "warnoptions": sys.warnoptions,
    "path": sys.path,
    "cwd": str(Path.cwd()),
    "main": {
        "file": main.__file__,
        "name": main.__name__,
        "spec": str(main.__spec__).split(" at 0x")[0],
        "package": main.__package__,
        "doc": main.__doc__,
        "loader": type(main.__loader__).__name__ + " " + getattr(main.__loader__, "path", ""),
        "builtins": type(main.__builtins__).__name__,
        "annotations": main.__annotations__,
        "cached": getattr(main, "__cached__", "missing"),
        "dir": sorted(name for name in vars(main) if name.startswith("__")),
    },
    "source": inspect.getsource(main) == Path(__file__).read_text(),
    "module_of_class": Point.__module__,
    "pickles": pickle.loads(pickle.dumps(Point(3))).x,
    "environ": dict(os.environ),
    "streams": [stream(sys.stdin), stream(sys.stdout), stream(sys.stderr)],
    "stdin": sys.stdin.read(),
    "descriptors": descriptors(),
    "handlers": {number.name: handler(number) for number in signal.Signals if number not in (9, 19)},
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "ignored": line["SigIgn"],
    "blocked": line["SigBlk"],
    "limits": {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")},
    "umask": line["Umask"],
    "nice": os.nice(0),
    "affinity": sorted(os.sched_getaffinity(0)),
    "scheduler": os.sched_getscheduler(0),
    "rights": {n: line[n] for n in ("Uid", "Gid", "Groups", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp")},
    "leads_group": os.getpgrp() == os.getpid(),
    "leads_session": os.getsid(0) == os.getpid(),
    "session_is_parents": os.getsid(0) == os.getppid(),
    "parent_alive": parent_alive,
    "comm": line["Name"],
    "cmdline": [word.decode() for word in proc("cmdline")],
    "oom": proc("oom_score_adj")[0].decode(),
    "cgroup": proc("cgroup")[0].decode(),
    "threads": [thread.name for thread in threading.enumerate()],
    "main_thread": threading.main_thread() is threading.current_thread(),
    "native_id": threading.main_thread().native_id == os.getpid(),
    "process_name": multiprocessing.current_process().name,
    "parent_process": str(multiprocessing.parent_process()),
    "start_method": multiprocessing.get_start_method(),
    "gc": [gc.isenabled(), gc.get_threshold()],
    "recursion_limit": sys.getrecursionlimit(),
    "switch_interval": sys.getswitchinterval(),
    "trace": [str(sys.gettrace()), str(sys.getprofile())],
    "faulthandler": faulthandler.is_enabled(),
    "logging": [logging.root.level, len(logging.root.handlers), logging.root.manager.disable],
    "log_clock": abs(vars(logging)["_startTime"] - BEGAN) < 60,
    "warnings": [str(entry) for entry in warnings.filters],
    "locale": [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(), sys.getfilesystemencoding()],
    "time": [time.tzname, time.timezone],
    "hash": hash("windlass") if os.environ.get("PYTHONHASHSEED") else None,
    "hooks": [sys.excepthook.__name__, sys.displayhook.__name__, repr(sys.breakpointhook)],
    "meta_path": [getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path],
    "torch_threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
    "torch_state": [
        str(torch.get_default_dtype()),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
    ],
    "cuda": [torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork()],  # type: ignore[no-untyped-call]
    "blas": blas_threads(),
    "kernel_threads": int(line["Threads"]) >= 1,
    "atexit_before": atexit._ncallbacks() >= 0,
    "ours": sorted(name for name in sys.modules if name.startswith("windlass")),
}
chance = {
    "random": random.random(),
    "numpy": float(numpy.random.random()),
    "generator": float(numpy.random.default_rng().random()),
    "torch": torch.rand(1).item(),
    "torch_seed": torch.initial_seed(),
    "key": multiprocessing.current_process().authkey.hex(),
}
print(json.dumps({"seen": seen, "chance": chance, "modules": sorted(sys.modules), "frozen": gc.get_freeze_count()}))
atexit.register(print, "atexit ran")
