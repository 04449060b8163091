"""For ranks that are launchers, the child's own error counts among all output of launcher and children."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.diagnose.test_rules import failed, seen

from windlass.diagnose.diagnose import diagnose
from windlass.diagnose.observations import NodeSeen, RankSeen
from windlass.worker.protocol import RankFailure
from windlass.worker.root_cause import first_cause, is_victim
from windlass.worker.tracebacks import child_code, child_signal, exception_line, traceback_of, unstyled, with_error_file

RESET = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer "
    "[127.0.0.1]:16808. This is typically caused by a remote worker crashing."
)
NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2006, "
    "remote process exited or there was a network error, NCCL version 2.20.5"
)


def trace(line: str, place: str = "train.py", number: int = 8) -> str:
    return (
        f'Traceback (most recent call last):\n  File "/job/{place}", line {number}, in <module>\n    main()\n{line}\n'
    )


def prefixed(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


def mixed(one: str, other: str) -> str:
    """Interleaves two texts line by line, as two concurrent processes write."""
    pairs = zip(one.splitlines(), other.splitlines(), strict=True)
    return "".join(f"{first}\n{second}\n" for first, second in pairs)


def table(root_rank: int, traceback: str, code: str = "1 (pid: 893) ", error_file: str = "<N/A>") -> str:
    """Returns the report that torchrun and accelerate print at their end."""
    indented = traceback.rstrip().replace("\n", "\n  ")
    return f"""W1122 13:42:26.946000 872 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 892 closing signal SIGTERM
E1122 13:42:26.978000 872 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 893) of binary: /venv/bin/python
Traceback (most recent call last):
  File "/venv/bin/torchrun", line 10, in <module>
    sys.exit(main())
             ^^^^^^
  File "/venv/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 386, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\x20
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-22_13:42:26
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 892)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 892
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_13:42:26
  host      : localhost
  rank      : {root_rank} (local_rank: {root_rank})
  exitcode  : {code}
  error_file: {error_file}
  traceback : {indented}
============================================================
"""  # noqa: E501


NO_RECORD = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
BOOM = trace("ValueError: boom")
TORCHRUN = (
    "W1122 13:42:23.832000 872 torch/distributed/run.py:982] Setting OMP_NUM_THREADS environment variable\n"
    + mixed(prefixed("[rank1]: ", BOOM), prefixed("[rank0]: ", trace(RESET, "train.py", 9)))
    + table(1, NO_RECORD)
)
RECORDED = prefixed("[rank0]: ", trace(RESET)) + table(1, BOOM, error_file="/tmp/torchelastic_z/attempt_0/1/error.json")
TEED = prefixed("[default1]:", BOOM) + prefixed("[default0]:", trace(NCCL)) + table(1, NO_RECORD)
ACCELERATE_SIMPLE = BOOM + trace(
    "subprocess.CalledProcessError: Command '['/venv/bin/python', 'train.py']' returned non-zero exit status 1.",
    "commands/launch.py",
    1174,
)
DEEPSPEED = (
    "[2026-11-22 12:00:00,000] [INFO] [launch.py:256:main] process 1236 spawned with command: ['python', 'train.py']\n"
    + BOOM
    + trace(NCCL)
    + "[2026-11-22 12:00:07,000] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 1236\n"
    "[2026-11-22 12:00:07,001] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 1237\n"
    "[2026-11-22 12:00:07,002] [ERROR] [launch.py:325:sigkill_handler] ['/venv/bin/python', '-u', 'train.py', "
    "'--local_rank=1'] exits with return code = 1\n"
)
FABRIC = (
    "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/2\n"
    + prefixed("[rank1]: ", BOOM)
    + "[rank: 1] Child process with PID 1237 terminated with code 1. Forcefully terminating all other processes to "
    "avoid zombies 🧟\n"
)
RAY = (
    "(RayTrainWorker pid=4711) Setting up process group for: env:// [rank=0, world_size=2]\n"
    + mixed(
        prefixed("(RayTrainWorker pid=4712, ip=10.0.0.7) ", BOOM), prefixed("(RayTrainWorker pid=4711) ", trace(RESET))
    )
    + "2026-11-22 12:00:00,123\tERROR tune_controller.py:1331 -- Trial task failed for trial TorchTrainer_1a2b3\n"
    "Traceback (most recent call last):\n"
    '  File "/venv/lib/python3.11/site-packages/ray/_private/worker.py", line 2667, in get\n'
    "    values, debugger_breakpoint = worker.get_objects(object_refs, timeout=timeout)\n"
    "ray.exceptions.RayTaskError(ValueError): \x1b[36mray::_Inner.train()\x1b[39m (pid=4600, ip=10.0.0.7)\n"
    '  File "/job/train.py", line 8, in train_loop\n    main()\nValueError: boom\n\n'
    "The above exception was the direct cause of the following exception:\n\n"
    + trace(
        "ray.train.base_trainer.TrainingFailedError: The Ray Train run failed. Please inspect the previous error "
        "messages for a cause.",
        "driver.py",
        30,
    )
)
SPAWN = (
    "Traceback (most recent call last):\n"
    '  File "/job/train.py", line 30, in <module>\n    mp.spawn(main, nprocs=2)\n'
    "torch.multiprocessing.spawn.ProcessRaisedException: \n\n"
    "-- Process 1 terminated with the following error:\n" + trace("ValueError: boom")
)
HOROVODRUN = (
    prefixed("[1]<stderr>:", BOOM)
    + prefixed("[0]<stderr>:", trace("horovod.common.exceptions.HorovodInternalError: Horovod has been shut down."))
    + trace(
        "RuntimeError: Horovod detected that one or more processes exited with non-zero status, thus causing the job "
        "to be terminated. The first process to do so was:\nProcess name: 1\nExit code: 1\n",
        "horovod/runner/gloo_run.py",
        300,
    )
)


@pytest.mark.parametrize(
    "text",
    [TORCHRUN, RECORDED, TEED, ACCELERATE_SIMPLE, DEEPSPEED, FABRIC, RAY, SPAWN, HOROVODRUN],
    ids=["torchrun", "record", "tee", "accelerate", "deepspeed", "fabric", "ray", "spawn", "horovodrun"],
)
def test_the_childs_own_error_is_the_verdict(text: str) -> None:
    verdict = failed(text, host={}).verdict
    assert (verdict.code, verdict.summary) == ("exception", "the script raised ValueError: boom")
    assert verdict.fix.startswith("see train.py:8")
    assert not is_victim(1, text)
    cause = first_cause([RankFailure(0, 1, 9.0, text)])
    assert cause is not None
    assert cause.summary == "ValueError: boom"


def test_fabric_kills_itself_after_its_child_has_failed() -> None:
    verdict = failed(FABRIC, exit_code=-9).verdict
    assert (verdict.code, verdict.summary) == ("exception", "the script raised ValueError: boom")


KILLED = prefixed("[rank0]: ", trace(RESET)) + table(
    1, "Signal 9 (SIGKILL) received by PID 893", "-9 (pid: 893)  (SIGKILL)"
)


@pytest.mark.parametrize(
    "text",
    [
        KILLED,
        prefixed("[rank0]: ", trace(RESET)) + FABRIC.splitlines()[-1].replace("code 1", "code -9"),
        DEEPSPEED.replace(BOOM, "").replace("return code = 1", "return code = -9"),
        "mpirun noticed that process rank 1 with PID 893 on node host exited on signal 9 (Killed).\n",
        trace("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL"),
    ],
    ids=["torchrun", "fabric", "deepspeed", "mpirun", "spawn"],
)
def test_a_child_that_was_killed_is_no_lost_connection(text: str) -> None:
    assert failed(text, host={"oom_kills_of_group": 1}).verdict.code == "oom-killed"
    assert failed(text, host={"oom_kills_of_group": 0}).verdict.code == "killed"


@pytest.mark.parametrize(
    ("words", "exit_code", "code", "said"),
    [
        ("no vocabulary\n", 3, "exit-code", "the script ended with exit code 3; its last line: no vocabulary"),
        ("python: can't open file '/job/nope.py': [Errno 2] No such file or directory\n", 2, "exit-code", "nope.py"),
        (
            '  File "/job/s.py", line 1\n    def x(:\n          ^\nSyntaxError: invalid syntax\n',
            1,
            "syntax-error",
            "s.py:1 is not Python",
        ),
        ("", 4, "exit-without-output", "exit code 4"),
    ],
)
def test_a_child_of_torchrun_that_ended_without_a_traceback_is_told_by_its_own_words(
    words: str, exit_code: int, code: str, said: str
) -> None:
    text = words + words + table(0, NO_RECORD, f"{exit_code} (pid: 893) ")
    verdict = failed(text).verdict
    assert (verdict.code, said in verdict.summary) == (code, True)
    assert "ChildFailedError" not in f"{verdict} {first_cause([RankFailure(0, 1, 9.0, text)])}"


@pytest.mark.parametrize("code", ["\N{SUPERSCRIPT TWO}", "-\N{SUPERSCRIPT TWO}", "9" * 5000, "-" + "9" * 5000])
def test_what_looks_like_a_report_of_torchrun_and_has_no_number_says_nothing_of_a_child(code: str) -> None:
    """A script may print anything; neither the worker nor `why` may fail because of it."""
    text = table(0, NO_RECORD, f"{code} (pid: 893) ")
    assert (child_code(text), child_signal(text)) == (0, 0)
    assert failed(text).verdict.summary


@pytest.mark.parametrize(
    "text",
    [
        'Traceback (most recent call last):\n  File "/job/s.py", line {}, in main\n    x()\nValueError: boom\n',
        "mpirun has exited due to process rank {} with PID 77 on\nnode x exiting improperly\n",
        "MPI_ABORT was invoked on rank {} in communicator MPI_COMM_WORLD\nwith errorcode 1.\n",
    ],
)
def test_numbers_of_any_length_in_what_a_script_prints_are_no_internal_error(text: str) -> None:
    """Python refuses to parse a number of 5,000 digits."""
    assert failed(text.format("9" * 5000)).verdict.summary


def test_an_error_that_was_handled_long_before_is_not_the_cause() -> None:
    handled = trace("ImportError: flash_attn")
    steps = "".join(f"step {number} loss 0.4\n" for number in range(60))
    assert failed(handled + steps + TORCHRUN).verdict.summary == "the script raised ValueError: boom"
    assert failed(handled + steps + DEEPSPEED).verdict.summary == "the script raised ValueError: boom"


def test_a_rank_of_its_own_that_lost_its_connection_is_a_victim_whatever_it_handled_before() -> None:
    tail = trace("ValueError: handled") + trace(RESET)
    assert is_victim(1, tail)
    assert not is_victim(
        1,
        trace(
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any "
            "local network address. port: 29500, name: EADDRINUSE"
        ),
    )


def test_colours_do_not_hide_errors() -> None:
    text = "".join(
        f"\x1b[31m{line}\x1b[0m\n"
        for line in trace("\x1b[1mModuleNotFoundError\x1b[0m: No module named 'sklearn'").splitlines()
    )
    verdict = failed(text).verdict
    assert (verdict.code, "scikit-learn" in verdict.fix) == ("module-missing", True)
    assert unstyled("\x1b]8;;http://x\x07link\x1b]8;;\x07 \x1b[2K\x1b[1;32mgreen\x1b[0m") == "link green"


def test_an_error_file_has_the_cause_where_the_output_has_not(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    extra = {"py_callstack": BOOM, "timestamp": "1700000000"}
    path.write_text(json.dumps({"message": {"message": "ValueError: boom", "extraInfo": extra}}))
    tail = prefixed("[rank0]: ", trace(RESET)) + table(1, NO_RECORD, error_file=str(path))
    assert exception_line(traceback_of(with_error_file(tail))) == "ValueError: boom"
    path.write_text("{")
    assert with_error_file(tail) == tail
    assert with_error_file(RECORDED) == RECORDED


@pytest.mark.parametrize("error", ["invalid usage", "invalid argument", "unhandled cuda error"])
def test_an_error_of_nccl_that_no_peer_has_caused_is_the_ranks_own(error: str) -> None:
    own = NCCL.replace("remote process exited or there was a network error", f"{error} (run with NCCL_DEBUG=WARN)")
    assert not is_victim(1, trace(own))
    assert is_victim(1, trace(NCCL))


NO_SEGMENT = (
    NCCL.replace("remote process exited or there was a network error", "unhandled system error (run with NCCL_DEBUG)")
    + "\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \n"
    "Last error:\nError while creating shared memory segment /dev/shm/nccl-8MT4zP (size 9637888)"
)


def test_nccl_without_shared_memory_is_the_ranks_own_error() -> None:
    own, peer = RankFailure(1, 1, 9.0, trace(NO_SEGMENT)), RankFailure(0, 1, 8.0, trace(NCCL))
    cause = first_cause([own, peer])
    assert cause is not None
    assert (cause.rank, cause.blames_peer) == (1, False)
    verdict = failed(trace(NO_SEGMENT)).verdict
    assert (verdict.code, "resources.shm" in verdict.fix) == ("shm-full", True)


def test_nccl_without_shared_memory_explains_a_launcher_of_several_ranks() -> None:
    texts = [prefixed(f"[rank{rank}]: ", trace(line)) for rank, line in enumerate((NCCL, NO_SEGMENT, NCCL))]
    assert "nccl-8MT4zP" in traceback_of("".join(texts))


IMPROPERLY = (
    "mpirun has exited due to process rank 1 with PID 0 on\nnode vm exiting improperly. There are three reasons this "
    'could occur:\n\n1. this process did not call "init" before exiting, but others in\nthe job did.\n'
)
ABORTED = "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\n"


def test_a_rank_that_left_without_mpi_finalize_is_named_as_mpirun_names_it() -> None:
    ranks = [RankSeen(0, exit_code=1, ended_at=103.0, tail=IMPROPERLY), RankSeen(1, exit_code=0, ended_at=102.0)]
    verdict = diagnose(seen(ranks=ranks, cause={"rank": 0, "summary": "", "exit_code": 1})).verdict
    assert (verdict.code, verdict.rank) == ("mpi-not-finalized", 1)
    assert verdict.summary == "rank 1 exited without MPI_Finalize"
    assert verdict.fix.endswith("windlass logs r-1 --rank 1 --tail 50")
    assert failed(IMPROPERLY).verdict.rank == 0  # mpirun is the job's own command, and MPI's ranks have no logs


@pytest.mark.parametrize("code", ["with errorcode 7.\n", "  Proc: [[5402,1],1]\n  Errorcode: 7\n"])
def test_rank_that_called_mpi_abort_is_named_with_error_code(code: str) -> None:
    rank = RankSeen(1, exit_code=7, ended_at=103.0, tail="step 3\n")
    made = seen(ranks=[RankSeen(0), rank], cause={"rank": 1, "summary": "", "exit_code": 7})
    verdict = diagnose(replace(made, nodes=[NodeSeen(0, "-----\n" + ABORTED + code)])).verdict
    assert (verdict.code, verdict.rank) == ("mpi-abort", 1)
    assert verdict.summary == "rank 1 called MPI_Abort with error code 7"
    assert failed("step 3\n" + ABORTED + code, exit_code=7).verdict.code == "mpi-abort"
    assert failed(BOOM + ABORTED + code).verdict.code == "exception"
