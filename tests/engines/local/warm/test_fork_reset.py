"""A rank cannot observe whether it was forked: everything that a script can observe is compared, rank by rank."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.engines.harness import Harness, Run
from tests.engines.local.warm.forks import SCRIPTS, trust

from windlass.engines.local.facts import find_gpus
from windlass.engines.local.warm_pool import WarmPool

WORDS = ("everything.py", "--epochs", "5", "two words")
RUN_VARIABLES = (
    "MASTER_PORT",
    "WINDLASS_MASTER_PORT",
    "WINDLASS_RUN_ID",
    "WINDLASS_OUTPUT_DIR",
    "WINDLASS_CHECKPOINT_DIR",
    "TORCHELASTIC_RUN_ID",
    "KUBEFLOW_TRAINER_SERVER_URL",
    "KUBEFLOW_TRAINER_SERVER_TOKEN",
)
"""Variables that differ between any two runs."""
OF_THE_LAUNCHER = {"environ", "faulthandler", "flags", "streams", "torch_threads", "blas", "descriptors", "handlers",
                   "leads_group", "leads_session", "session_is_parents", "cgroup", "executable", "orig_argv",
                   "cmdline"}  # fmt: skip
"""Properties in which a rank differs from a script that is started by hand, as it does under torchrun."""


def seen(harness: Harness, words: tuple[str, ...] = WORDS, **fields: Any) -> dict[int, Any]:
    run = harness.finish(*words, base=SCRIPTS, procs_per_node=2, **fields)
    assert run.status.phase == "succeeded", run.text()
    starts = {event.data["start"] for event in run.events if event.kind == "node"}
    assert starts == {harness.way.name.split()[1]}, [event.data for event in run.events if event.kind == "warning"]
    assert run.text().count("atexit ran\n") == 2
    found = run.json_of_ranks()
    for rank in found.values():
        environ = rank["seen"]["environ"]
        for name in RUN_VARIABLES:
            of_any_run = environ[name].replace(str(harness.home), "HOME").replace(run.id, "RUN")
            environ[name] = re.sub(r"\d{4,}", "PORT", of_any_run)
    return found


def both(cold: Harness, warm: Harness, **fields: Any) -> list[tuple[Any, Any]]:
    a, b = seen(cold, **fields), seen(warm, **fields)
    assert sorted(a) == sorted(b) == [0, 1]
    return [(a[rank], b[rank]) for rank in (0, 1)]


def differences(one: dict[Any, Any], other: dict[Any, Any]) -> dict[Any, Any]:
    """Returns the entries in which two ranks differ."""
    found: dict[str, Any] = {}
    for name in sorted({*one, *other}):
        a, b = one.get(name), other.get(name)
        if a != b:
            if isinstance(a, list) and isinstance(b, list):
                a, b = dict(enumerate(a)), dict(enumerate(b))
            found[name] = differences(a, b) if isinstance(a, dict) and isinstance(b, dict) else (a, b)
    return found


@pytest.mark.slow
def test_forked_rank_observes_same_as_new_interpreter(cold: Harness, warm: Harness) -> None:
    for started, forked in both(cold, warm):
        line = forked["seen"]["cmdline"]
        assert line == [sys.executable, *WORDS], "the command line is that of the script"
        assert line == [word for word in started["seen"].pop("cmdline") if not word.endswith("/rank.py")]
        del forked["seen"]["cmdline"]
        assert differences(started["seen"], forked["seen"]) == {}


@pytest.mark.slow
@pytest.mark.nightly
def test_forked_rank_in_other_environment_observes_same_as_new_interpreter(cold: Harness, warm: Harness) -> None:
    """Another shell uses the same process: variables that the imports have not read are set in the fork."""
    seen(warm)
    before = {found["pid"] for found in WarmPool(warm.home).show()}
    env = {
        "WANDB_NAME": "other",
        "PATH": f"/other/bin{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV_PROMPT": "other",
        "TERM": "vt52",
        "COLUMNS": "33",
        "EDITOR": "ed",
        "HISTSIZE": "",
    }
    for started, forked in both(cold, warm, env=env):
        assert forked["seen"].pop("cmdline") == [sys.executable, *WORDS]
        del started["seen"]["cmdline"]
        assert differences(started["seen"], forked["seen"]) == {}
        assert forked["seen"]["environ"]["WANDB_NAME"] == "other"
    assert {found["pid"] for found in WarmPool(warm.home).show()} == before


@pytest.mark.slow
@pytest.mark.nightly
def test_forked_module_with_other_settings_observes_same_as_new_interpreter(cold: Harness, warm: Harness) -> None:
    """Buffered output, a fixed hash seed, the locale C, another time zone, more threads, warnings as errors."""
    env = {
        "PYTHONUNBUFFERED": "",
        "PYTHONHASHSEED": "7",
        "LC_ALL": "C",
        "TZ": "Asia/Tokyo",
        "OMP_NUM_THREADS": "2",
        "PYTHONWARNINGS": "error::FutureWarning",
        "PYTHONIOENCODING": "latin-1:replace",
        "PYTHONFAULTHANDLER": "",
    }
    words = ("-m", "everything", "a")
    a, b = seen(cold, words, env=env), seen(warm, words, env=env)
    for started, forked in ((a[rank], b[rank]) for rank in (0, 1)):
        assert forked["seen"].pop("cmdline") == [sys.executable, *words]
        del started["seen"]["cmdline"]
        assert differences(started["seen"], forked["seen"]) == {}
        assert started["seen"]["hash"] is not None


@pytest.mark.slow
def test_forked_rank_observes_same_as_script_started_by_hand(warm: Harness) -> None:
    done = subprocess.run(
        [sys.executable, *WORDS], cwd=SCRIPTS, capture_output=True, text=True, check=True, timeout=240
    )
    bare = json.loads(done.stdout.splitlines()[0])["seen"]
    forked = seen(warm)[0]["seen"]
    assert set(differences(bare, forked)) <= OF_THE_LAUNCHER
    assert forked["cmdline"][1:] == bare["cmdline"][1:]


@pytest.mark.slow
def test_no_two_ranks_draw_the_same_numbers(warm: Harness) -> None:
    chances = [rank["chance"] for rank in seen(warm).values()]
    for name, value in chances[0].items():
        assert value != chances[1][name], name


@pytest.mark.slow
def test_forked_rank_has_more_modules_and_lacks_none(cold: Harness, warm: Harness) -> None:
    """A rank can observe these modules, as the documentation of warm starts says."""
    for started, forked in both(cold, warm):
        assert set(started["modules"]) - set(forked["modules"]) <= {"_signal"}
        assert not [name for name in forked["modules"] if name.startswith("windlass")]
        assert (started["frozen"], forked["frozen"] > 0) == (0, True)


HOOKS = {
    name: "import atexit, sys\natexit.register(print, 'flushed', flush=True)\n"
    + hook
    + "sys.excepthook = hook\nraise ValueError('bad label')\n"
    for name, hook in {
        "fails": "def hook(*_):\n    raise TypeError('of the hook')\n",
        "exits": "def hook(*_):\n    sys.exit(9)\n",
        "is_none": "hook = None\n",
        "exits_with_words": "def hook(*_):\n    sys.stderr = None\n    sys.exit('out of data')\n",
    }.items()
}


@pytest.mark.parametrize(
    "name",
    [
        "raises",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("interrupt", "chain", "syntax", "exit_text", "exit_3", "group")
        ),
    ],
)
def test_forked_rank_fails_like_new_interpreter(cold: Harness, warm: Harness, name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text(FAILURES[name])
    started, forked = (
        harness.finish(f"{name}.py", base=tmp_path, env={"PYTHONUNBUFFERED": ""}) for harness in (cold, warm)
    )
    assert outcome(forked) == outcome(started)


@pytest.mark.slow
@pytest.mark.parametrize("name", HOOKS)
def test_exception_hook_of_script_hides_no_traceback(cold: Harness, warm: Harness, name: str, tmp_path: Path) -> None:
    (tmp_path / "hook.py").write_text(HOOKS[name])
    by_hand = subprocess.run(
        [sys.executable, tmp_path / "hook.py"],
        cwd=tmp_path,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    for run in (harness.finish("hook.py", base=tmp_path) for harness in (cold, warm)):
        assert (run.text(), run.exit_codes()) == (by_hand.stdout, [by_hand.returncode])
        assert run.status.cause is not None
        assert ("bad label" in run.status.cause.summary) == ("bad label" in by_hand.stdout)


def test_exit_functions_run_after_handler_raises_during_thread_join(cold: Harness, tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(
        "import atexit, os, signal, threading, time\natexit.register(print, 'flushed')\n"
        "def handler(*_):\n    raise SystemExit(0)\n"
        "def late():\n    time.sleep(0.5)\n    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(0.5)\n"
        "signal.signal(signal.SIGTERM, handler)\nthreading.Thread(target=late).start()\n"
    )
    run = cold.finish("late.py", base=tmp_path)
    assert (run.text().splitlines()[-1], run.exit_codes()) == ("flushed", [0])


def test_no_module_next_to_script_is_imported_at_exit(cold: Harness, tmp_path: Path) -> None:
    for name in ("ctypes", "signal", "struct"):
        (tmp_path / f"{name}.py").write_text("print('imported')\n")
    (tmp_path / "train.py").write_text("print('trained')\nraise KeyboardInterrupt\n")
    run = cold.finish("train.py", base=tmp_path)
    assert ("imported" in run.text(), run.exit_codes()) == (False, [-2])


@pytest.mark.slow
def test_forked_rank_exits_like_new_interpreter(cold: Harness, warm: Harness, tmp_path: Path) -> None:
    """Each rank ends in another way."""
    for rank, text in enumerate(ENDINGS.values()):
        (tmp_path / f"{rank}.py").write_text(text)
    (tmp_path / "ends.py").write_text(
        "import os, runpy\nrunpy.run_path(os.environ['RANK'] + '.py', run_name='__main__')\n"
    )
    started, forked = (
        harness.finish("ends.py", base=tmp_path, env={"PYTHONUNBUFFERED": ""}, procs_per_node=len(ENDINGS))
        for harness in (cold, warm)
    )
    assert outcome(forked) == outcome(started)
    for rank, name in enumerate(ENDINGS):
        assert forked.text(ranks=[rank]) == started.text(ranks=[rank]), name
    assert forked.text(ranks=[list(ENDINGS).index("printf")]) == "from C\n"


def outcome(run: Run) -> tuple[Any, ...]:
    cause = run.status.cause
    text = run.text() if len(run.exit_codes()) == 1 else ""
    return text, run.exit_codes(), run.status.phase, cause and (cause.summary, cause.traceback)


FAILURES = {
    "raises": "import numpy\ndef f(x):\n    return x / 0\nprint('so far')\nf(1)\n",
    "chain": "try:\n    {}['weights']\nexcept KeyError as error:\n    raise RuntimeError('no checkpoint') from error\n",
    "syntax": "x = (1\ny = 2\n",
    "exit_text": "import sys\nsys.exit('out of data')\n",
    "exit_3": "import sys\nprint('bye', end='')\nsys.exit(3)\n",
    "interrupt": "raise KeyboardInterrupt\n",
    "group": "raise ExceptionGroup('many', [ValueError(1), KeyError('a')])\n",
}
ENDINGS = {
    "in_thread": "import threading\ndef f():\n    raise ValueError('lost')\n"
    "t = threading.Thread(target=f, name='T')\nt.start()\nt.join()\nprint('on')\n",
    "printf": "import ctypes\nctypes.CDLL(None).puts(b'from C')\n",
    "buffered": "import sys\nsys.stdout.write('out ')\nsys.stderr.write('err\\n')\nsys.stdout.write('late')\n",
    "warns": "import warnings\ndef f():\n    warnings.warn('old', FutureWarning)\nf()\nf()\n",
    "recursion": "import sys\nsys.setrecursionlimit(200)\ndef f(): f()\ntry:\n    f()\nexcept RecursionError as e:\n"
    "    print(str(e).split(' while')[0])\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["spawn.py", "forkserver.py", "workers.py"])
def test_forked_rank_can_start_processes(cold: Harness, warm: Harness, name: str) -> None:
    started, forked = (harness.finish(name, base=SCRIPTS, procs_per_node=2) for harness in (cold, warm))
    assert [sorted(run.text().splitlines()) for run in (started, forked)] == [sorted(started.text().splitlines())] * 2
    assert forked.status.exit_code == 0, forked.text()


@pytest.mark.slow
def test_forked_and_cold_ranks_have_bitwise_equal_weights(cold: Harness, warm: Harness) -> None:
    """Two ranks, convolution, dropout, Adam, a shuffling loader with a worker, all from one seed."""
    sums = [
        harness.finish("weights.py", base=SCRIPTS, procs_per_node=2).text().splitlines() for harness in (cold, warm)
    ]
    assert len(sums[0]) == 1, sums
    assert sums[0] == sums[1]


@pytest.mark.gpu
@pytest.mark.skipif(not find_gpus(), reason="there is no GPU")
def test_forked_and_cold_ranks_have_equal_weights_on_gpu(cold: Harness, warm: Harness) -> None:
    env = {"WEIGHTS_DEVICE": "cuda", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    sums = [
        harness.finish("weights.py", base=SCRIPTS, env=env, launcher="torchrun").text().splitlines()
        for harness in (cold, warm)
    ]
    assert len(sums[0]) == 1, sums
    assert sums[0] == sums[1]


@pytest.mark.slow
def test_fork_adopts_ignored_signals_and_limits_of_caller(warm: Harness, tmp_path: Path) -> None:
    """Tested under nohup and after `ulimit -n`, with a warm process that was started before with other settings."""
    script = (
        "import os, resource, signal\n"
        "print(signal.getsignal(signal.SIGHUP).name, resource.getrlimit(resource.RLIMIT_NOFILE)[0], oct(os.umask(0)))\n"
    )
    (tmp_path / "caller.py").write_text(script)
    windlass = Path(sys.executable).with_name("windlass")
    trust(warm.home, "json")
    told = f"umask 027; ulimit -S -n 500; exec {windlass} run -q caller.py --set 'warm=[\"json\"]'"
    for command, expected in (([], "SIG_DFL"), (["nohup"], "SIG_IGN")):
        done = subprocess.run(
            [*command, "sh", "-c", told],
            cwd=tmp_path,
            env={**os.environ, "WINDLASS_HOME": str(warm.home)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # the tests themselves may run under nohup
        )
        assert done.returncode == 0, done.stderr
        assert newest_log(warm) == f"{expected} 500 0o27\n"


def newest_log(harness: Harness) -> str:
    newest = harness.store.statuses(last=1)[0]
    starts = [event.data["start"] for event in harness.store.events(newest.id) if event.kind == "node"]
    assert starts == ["warm"]
    return (harness.store.run_dir(newest.id) / "attempt-1" / "rank-0.log").read_text()
