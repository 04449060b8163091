"""Every condition that makes a fork unsafe leads to a refusal with its reason, and a cold start of the ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engines.harness import Harness
from tests.engines.local.warm.forks import Forks, harness_in, trust
from tests.helpers.until import until

from windlass.engines.local.facts import find_gpus
from windlass.engines.local.warm_pool import why_not
from windlass.worker import process

UNSAFE = {
    "a thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "the imports left 1 extra thread, which a fork would lose",
    ),
    "two threads": (
        "import threading, time\n"
        "for _ in range(2): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "2 extra threads",
    ),
    "a process": ("import subprocess\nsubprocess.Popen(['sleep', '60'])", "left a process running"),
    "an open file": ("log = open('/proc/self/stat')", "left /proc/"),
    "a connection": ("import socket\npair = socket.socketpair()", "left socket:["),
    "shared memory": ("import mmap\nmemory = mmap.mmap(-1, 4096)", "made shared memory"),
    "another folder": ("import os\nos.chdir('/tmp')", "changed the working folder"),
    "another umask": ("import os\nos.umask(0o007)", "changed the umask"),
    "another limit": ("import resource as r\nr.setrlimit(r.RLIMIT_CORE, (0, 0))", "changed the limits"),
    "a tracer": ("import sys\nsys.settrace(lambda *_: None)", "a tracer or profiler is active"),
    "a variable of the rank": (
        "import os\nRANK = int(os.environ.get('RANK', 0))",
        "an import reads RANK, which differs between ranks",
    ),
    "the visible GPUs": ("import os\nos.getenv('CUDA_VISIBLE_DEVICES')", "an import reads CUDA_VISIBLE_DEVICES"),
    "an import that fails": ("import json\nraise RuntimeError('half')", "not be preloaded (RuntimeError: half)"),
    "an import that exits": ("raise SystemExit(3)", "could not be preloaded (SystemExit: 3)"),
    "something missing": ("import nonexistent_module", "No module named 'nonexistent_module'"),
    "an interpreter that dies": ("import os\nos._exit(9)", "ended while it imported"),
    "a crash": ("import ctypes\nctypes.string_at(0)", "ended while it imported"),
}


@pytest.mark.parametrize("what", UNSAFE)
def test_side_effects_of_imports_are_detected(forks: Forks, what: str) -> None:
    text, reason = UNSAFE[what]
    forks.module("culprit", text)
    assert reason in forks.refused("done.py", "culprit")
    assert forks.pids() == [], "what cannot be used is not kept in memory"


@pytest.mark.parametrize("what", ["a thread", "a process", "a variable of the rank", "an import that fails", "a crash"])
def test_untried_modules_are_tried_in_parallel_with_cold_start(forks: Forks, what: str) -> None:
    """No run waits for the imports of a trial, and its result holds in every environment."""
    text, reason = UNSAFE[what]
    forks.trusts = False
    forks.module("culprit", f"{text}")
    assert forks.refused("done.py", "culprit") == "its imports are being tried for the next run"
    until(lambda: forks.one().get("left_out"))
    assert reason in forks.refused("done.py", "culprit", OMP_PROC_BIND="true")
    assert forks.pids() == []


def test_safe_modules_of_list_are_imported(forks: Forks) -> None:
    """The process executes itself again, so that its pid stays the same."""
    forks.trusts = False
    forks.module("culprit", UNSAFE["a thread"][0])
    forks.module("harmless", "import os\nPID = os.getpid()")
    forks.script("look.py", "import sys\nprint('culprit' in sys.modules, 'harmless' in sys.modules)")
    assert "its imports are being tried" in forks.refused("look.py", "culprit", "harmless")
    (pid,) = forks.pids()
    until(lambda: forks.one().get("imported") == ["harmless"])
    assert forks.works("look.py", "culprit", "harmless") == "False True\n"
    assert forks.one()["pid"] == pid
    assert forks.one()["left_out"] == ["culprit: the imports left 1 extra thread, which a fork would lose"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not forks.pids())
    assert forks.works("look.py", "culprit", "harmless") == "False True\n", "a later process knows what is safe"


def test_killed_trial_is_not_recorded(forks: Forks) -> None:
    forks.trusts = False
    forks.module("slow", "import time\ntime.sleep(600)")
    assert "its imports are being tried" in forks.refused("done.py", "slow")
    (pid,) = forks.pids()
    until(lambda: forks.one().get("trying") and process.children(pid))
    os.kill(process.children(pid)[0], signal.SIGKILL)
    until(lambda: not forks.pids())
    assert "its imports are being tried" in forks.refused("done.py", "slow")


def test_a_trial_that_hangs_is_ended(forks: Forks) -> None:
    forks.trusts = False
    forks.bounded(import_seconds=0.5)
    forks.module("slow", "import time\ntime.sleep(600)")
    assert "its imports are being tried" in forks.refused("done.py", "slow")
    until(lambda: forks.one().get("left_out") == ["slow: did not finish its imports within 0.5 s"])


def test_refusal_is_recorded_until_removed(forks: Forks) -> None:
    """Otherwise every start would wait for the imports twice."""
    forks.module("culprit", UNSAFE["a thread"][0] + "\nprint('imported')")
    assert forks.refused("done.py", "culprit") == forks.refused("done.py", "culprit")
    (entry,) = forks.pool.show()
    assert (entry["state"], entry["why"]) == ("refused", UNSAFE["a thread"][1])
    forks.module("culprit", "")
    assert "extra thread" in forks.refused("done.py", "culprit")
    forks.pool.stop()
    assert forks.works("done.py", "culprit") == "done\n"


def test_harmless_imports_are_allowed(forks: Forks) -> None:
    """A thread and a process that end, a closed file, a variable that is set, a missing module."""
    forks.module(
        "harmless",
        "import os, subprocess, threading\nthreading.Thread(target=print, args=('x',)).start()\n"
        "subprocess.run(['true'])\nopen('/proc/self/stat').close()\nos.environ['BY_IMPORT'] = '1'\n"
        "os.environ.pop('GOES', None)",
    )
    forks.script("look.py", "import os\nprint(os.environ.get('BY_IMPORT'), os.environ.get('GOES'))")
    assert forks.works("look.py", "harmless", "nonexistent_module", GOES="away") == "1 None\n"


def test_handlers_and_atexit_functions_of_imports_run_in_ranks(forks: Forks) -> None:
    forks.module(
        "sets",
        "import atexit, signal\natexit.register(print, 'at exit')\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('term'))\n"
        "import sys\nsys.path.insert(0, '/opt/first')",
    )
    forks.script("look.py", "import os, signal, sys\nos.kill(os.getpid(), signal.SIGTERM)\nprint(sys.path[:2])")
    assert forks.works("look.py", "sets") == f"term\n['/opt/first', '{forks.folder}']\nat exit\n"


def test_import_that_stores_main_gets_main_of_script(forks: Forks) -> None:
    """dill does this to pickle objects that a script defines."""
    forks.module("keeps", "import __main__\ndef ask(): return __main__.answer, __main__.__file__")
    forks.script("look.py", "import keeps\nanswer = 42\nprint(keeps.ask()[0], keeps.ask()[1] == __file__)")
    assert forks.works("look.py", "keeps") == "42 True\n"


def test_output_of_imports_is_printed_once(forks: Forks) -> None:
    """Ranks must not print it again from a copied buffer."""
    forks.module("prints", "import ctypes\nprint('imported', end='')\nctypes.CDLL(None).printf(b'from C')")
    assert forks.works("done.py", "prints", PYTHONUNBUFFERED="") == "done\n"
    assert next(forks.home.glob("warm/*.log")).read_text() in ("importedfrom C", "from Cimported")


COMPUTES_AHEAD = """
import torch
torch.set_num_threads({threads})
weights = torch.ones(512, 512, requires_grad=True)
(weights @ weights).sum().backward()
"""
STEP = """
import torch
weights = torch.ones(512, 512, requires_grad=True)
(weights @ weights).sum().backward()
print(int(weights.grad.sum()))
"""


def test_torch_operation_during_import_leaves_threads_and_is_refused(forks: Forks) -> None:
    forks.module("computes", COMPUTES_AHEAD.format(threads=2))
    assert "extra thread" in forks.refused("done.py", "computes")


@pytest.mark.slow
def test_gradients_during_import_are_harmless_or_refused(forks: Forks) -> None:
    """Autograd may refuse to work in a fork; the trial shows whether it does."""
    forks.module("computes", COMPUTES_AHEAD.format(threads=1))
    forks.script("step.py", STEP)
    answer = forks.fork("step.py", "computes", OMP_NUM_THREADS="1")
    assert forks.text() == f"{2 * 512**3}\n" if isinstance(answer, int) else "trial fork" in answer.why


@pytest.mark.slow
def test_imports_of_openblas_and_scikit_learn_leave_no_thread(forks: Forks) -> None:
    """OPENBLAS_NUM_THREADS is not set; the rank has as many threads as with a cold start."""
    forks.script(
        "look.py",
        "import numpy, os, threadpoolctl\n"
        "assert len(os.listdir('/proc/self/task')) == 1\n"
        "numpy.ones((300, 300)) @ numpy.ones((300, 300))\n"
        "print({lib['num_threads'] for lib in threadpoolctl.threadpool_info() if lib['internal_api'] == 'openblas'}, "
        "os.environ.get('OPENBLAS_NUM_THREADS'))",
    )
    cores = len(os.sched_getaffinity(0))
    assert forks.works("look.py", "numpy", "scipy", "sklearn") == f"{{{cores}}} None\n"
    assert forks.works("look.py", "numpy", "scipy", "sklearn", OPENBLAS_NUM_THREADS="1") == "{1} 1\n"


@pytest.mark.slow
def test_torch_computes_with_several_threads_after_the_fork(forks: Forks) -> None:
    forks.script("step.py", STEP)
    assert forks.works("step.py", "numpy", "torch", OMP_NUM_THREADS="2") == f"{2 * 512**3}\n"


def test_initialised_cuda_is_refused_with_emulated_torch(forks: Forks) -> None:
    """Without a GPU, a replacement for torch reports that CUDA is initialised."""
    forks.module("torch", "class cuda:\n    is_initialized = staticmethod(lambda: True)")
    assert forks.refused("done.py", "torch") == "the imports initialised CUDA, which does not survive a fork"


@pytest.mark.gpu
@pytest.mark.skipif(not find_gpus(), reason="there is no GPU")
@pytest.mark.parametrize("text", ["torch.zeros(1, device='cuda')", "torch.cuda.device_count()"])
def test_initialised_cuda_is_refused(forks: Forks, text: str) -> None:
    forks.module("uses", f"import torch\n{text}")
    assert "CUDA" in forks.refused("done.py", "uses") or "trial fork" in forks.refused("done.py", "uses")


@pytest.mark.gpu
@pytest.mark.skipif(not find_gpus(), reason="there is no GPU")
def test_a_rank_computes_on_a_gpu_after_the_fork(forks: Forks) -> None:
    forks.script("step.py", "import torch\nprint(int(torch.ones(8, device='cuda').sum()))")
    assert forks.works("step.py", "numpy", "torch") == "8\n"


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_AUDIT", "COVERAGE_PROCESS_START"])
def test_some_variables_prevent_forking(name: str) -> None:
    assert why_not({name: "x"}) == f"{name} is set"
    assert why_not({name: ""}) == ""


def test_other_platforms_prevent_forking() -> None:
    assert why_not({}, platform="darwin") == "forking is only safe on Linux"
    assert why_not({}, platform="linux") == ""


# -- packages on disk -------------------------------------------------------------------------------------------------


def test_edited_package_is_imported_by_new_process(forks: Forks) -> None:
    forks.module("package", "VALUE = 1")
    forks.script("look.py", "import package\nprint(package.VALUE)")
    assert forks.works("look.py", "package") == "1\n"
    before = forks.one()
    forks.module("package", "VALUE = 22")
    assert forks.works("look.py", "package") == "22\n"
    assert forks.one()["pid"] != before["pid"]


def test_removed_package_is_detected(forks: Forks) -> None:
    forks.module("package", "VALUE = 1")
    forks.script("look.py", "import package")
    forks.works("look.py", "package")
    (forks.modules / "package.py").unlink()
    assert "No module named 'package'" in forks.works("look.py", "package")


@pytest.mark.slow
def test_installation_into_environment_is_detected(forks: Forks, tmp_path: Path) -> None:
    """An upgrade replaces folders in site-packages, even if no imported file changes."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True, timeout=240)
    python = tmp_path / "env" / "bin" / "python"
    (site,) = (tmp_path / "env").glob("lib/python3*/site-packages")
    (site / "package").mkdir()
    (site / "package" / "__init__.py").write_text("")
    harness, pids = harness_in(forks.home, "warm"), []
    for number in range(2):
        (site / f"other-{number}.dist-info").mkdir()
        starts = []
        for _ in range(2):  # the first start is cold: untried packages are tried in parallel with it
            run = harness.start("done.py", base=forks.folder, python=str(python), warm=["package"])
            run.wait()
            starts += [event.data["start"] for event in run.events if event.kind == "node"]
            until(lambda: forks.one().get("imported") == ["package"])
        assert starts == ["cold", "warm"]
        pids += forks.pids()
    assert len(set(pids)) == 2
    harness.close()


@pytest.mark.parametrize("name", ["json.py", "json/__init__.py", "_json.so"])
def test_file_next_to_script_that_shadows_import_is_detected(forks: Forks, name: str) -> None:
    (forks.folder / name).parent.mkdir(exist_ok=True)
    (forks.folder / name).write_text("")
    reason = forks.refused("done.py", "json")
    assert reason == f"{forks.folder / name} would be imported in place of a module already imported"
    (forks.folder / name).unlink()
    assert forks.works("done.py", "json") == "done\n", "another script is served by the same process"


def test_file_in_pythonpath_that_shadows_import_is_detected(forks: Forks) -> None:
    forks.works("done.py", "json")
    forks.module("json", "")
    assert "modules/json.py would be imported" in forks.refused("done.py", "json")


@pytest.mark.parametrize("name", ["time.py", "os.py", "torch.txt", "data/train.py"])
def test_file_that_shadows_no_import_is_allowed(forks: Forks, name: str) -> None:
    """Built-in and frozen modules are found before any folder is searched."""
    (forks.folder / name).parent.mkdir(exist_ok=True)
    (forks.folder / name).write_text("")
    assert forks.works() == "done\n"


# -- by way of a run --------------------------------------------------------------------------------------------------


def test_run_prints_reason_of_cold_start_in_one_line(warm: Harness) -> None:
    trust(warm.home, "nonexistent_module")
    run = warm.finish("environment", nodes=2, env={"LD_PRELOAD": ""}, warm=["nonexistent_module"])
    assert [event.data["start"] for event in run.events if event.kind == "node"] == ["warm", "warm"]
    preloaded = warm.finish("environment", nodes=2, env={"LD_PRELOAD": "/dev/null"})
    assert [event.data["start"] for event in preloaded.events if event.kind == "node"] == ["cold", "cold"]
    assert [event.data["message"] for event in preloaded.events if event.kind == "warning"] == [
        "cold start: LD_PRELOAD is set"
    ]


@pytest.mark.slow
def test_requested_cold_start_needs_no_warm_process(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import json, torch")
    environ = {**os.environ, "WINDLASS_HOME": str(tmp_path / "home")}
    windlass = Path(sys.executable).with_name("windlass")
    for words in (["plan", "--cold"], ["plan", "--set", "start=cold"]):
        command = [str(windlass), *words, "train.py", "-o", "json"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True, timeout=120
        )
        assert '"warm": []' in json.dumps(json.loads(done.stdout))
    assert not (tmp_path / "home" / "warm").exists()
