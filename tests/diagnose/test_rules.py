"""Rules are tested on handwritten observations: cases that cannot be provoked everywhere or are easily confused."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from windlass.diagnose.diagnose import diagnose
from windlass.diagnose.flights import flights_of
from windlass.diagnose.observations import Environment, MachineFacts, NodeSeen, Observations, RankSeen
from windlass.diagnose.rules.deaths import UNCOUNTED
from windlass.diagnose.verdict import Diagnosis
from windlass.engines.local.observe import environment
from windlass.plan.compose import NO_NODES
from windlass.plan.plan import NO_PLAN
from windlass.plan.steps import FolderStep
from windlass.runs.events import REMOVED_BEFORE, Event
from windlass.runs.phase import Phase
from windlass.runs.record import fold
from windlass.worker.protocol import RankFailure
from windlass.worker.root_cause import first_cause
from windlass.worker.tracebacks import since_handled

TRACE = 'Traceback (most recent call last):\n  File "/job/train.py", line 7, in <module>\n    step()\n'
PEER_GONE = TRACE + "RuntimeError: [gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:4\n"


NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.cpp:94, invalid usage "
    "(run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9\n"
)


def seen(
    phase: Phase = Phase.FAILED,
    *,
    ranks: Sequence[RankSeen] = (),
    cause: dict[str, Any] | None = None,
    exit_code: int = 1,
    more: Sequence[tuple[str, dict[str, Any]]] = (),
    host: dict[str, Any] | None = None,
    flights: dict[int, Any] | None = None,
    reason: str | None = None,
    **fields: Any,
) -> Observations:
    """Returns observations on a run with these ranks and this end."""
    many = max(1, len(ranks))
    told: list[tuple[str, dict[str, Any]]] = [
        ("created", {"id": "r-1", "name": "r", "target": "local", "output_dir": "/out"}),
        ("attempt", {"number": 1, "world_size": many, "nodes": [list(range(many))]}),
        *more,
        *([("cause", as_recorded(cause, ranks, host))] if cause else []),
        *([("end", {"phase": phase.value, "exit_code": exit_code, "reason": reason})] if phase.is_terminal else []),
    ]
    events = [Event(number, 100.0 + number, kind, data) for number, (kind, data) in enumerate(told, 1)]
    return Observations(
        fold(events), NO_PLAN, events, ranks, [NodeSeen(0, flights=flights_of(flights or {}))], **fields
    )


def as_recorded(cause: dict[str, Any], ranks: Sequence[RankSeen], host: dict[str, Any] | None) -> dict[str, Any]:
    """Returns a root cause as a supervisor records it, parsed from the last output of the first failed rank."""
    first = next((one for one in ranks if one.rank == cause.get("rank")), None)
    if first is None:
        return cause
    code = cause.get("exit_code") or first.exit_code or 1
    found = first_cause([RankFailure(first.rank, code, 103.0, first.tail)])
    assert found is not None
    known = {name: value for name, value in cause.items() if value not in ("", [])}
    return {**found.to_json(), **known, "host": host or {}}


def failed(tail: str = "", exit_code: int = 1, **fields: Any) -> Diagnosis:
    """Returns the diagnosis of a run of one rank with this last output."""
    rank = RankSeen(0, exit_code=exit_code, ended_at=103.0, tail=tail)
    cause = {"rank": 0, "summary": "", "exit_code": exit_code, "traceback": "", "victims": []}
    return diagnose(seen(ranks=[rank], cause=cause, exit_code=exit_code, **fields))


def test_outputs_that_their_store_refuses_are_told_with_how_to_go_on() -> None:
    summary = "the outputs cannot be uploaded: there is no bucket nowhere (create it)"
    found = diagnose(seen(cause={"summary": summary, "victims": []})).verdict
    assert (found.code, "there is no bucket nowhere" in found.summary) == ("outputs-refused", True)
    assert found.fix.startswith("mend that; then windlass resume r-1 starts it again; ")
    assert found.fix.endswith("windlass rerun r-1 --set outputs=ADDRESS")


def test_why_a_run_was_not_started_once_more_is_told_beside_its_error() -> None:
    error = "ModuleNotFoundError: No module named 'timm'"
    told = failed(TRACE + error, reason="same-error-twice")
    assert told.verdict.code == "module-missing"
    assert told.verdict.evidence[-1].endswith("failed at its start in the same way, so the job was not started again")
    assert "once more" not in str(failed(TRACE + error).verdict.evidence)


@pytest.mark.parametrize(
    ("why", "fix"),
    [
        ("a-1, after which it was to start, ended as failed", "once it has succeeded, windlass resume r-1;"),
        (f"a-1, after which it was to start, {REMOVED_BEFORE}", "windlass rerun r-1 does not wait for it"),
    ],
)
def test_verdict_does_not_advise_waiting_for_removed_run(why: str, fix: str) -> None:
    verdict = diagnose(seen(Phase.STOPPED, cause={"summary": why, "victims": []}, reason="not-admitted")).verdict
    assert (why in verdict.summary, verdict.fix.startswith(fix)) == (True, True)


LIBRARY = (
    '  File "/env/lib/python3.11/site-packages/torch/cuda/_utils.py", line 11, in <module>\n    from cuda.x import (\n'
)


@pytest.mark.parametrize(
    ("tail", "module", "file"),
    [
        (f'{LIBRARY}  File "/job/cuda.py", line 2, in <module>\n    m.cuda()\nTypeError: x', "cuda", "/job/cuda.py"),
        (
            '  File "/job/torch.py", line 1, in <module>\n    import torch\n    ^^^\n  File '
            '"/job/torch.py", line 2, in '
            "<module>\n    torch.nn\nAttributeError: module 'torch' has no attribute 'nn'",
            "torch",
            "/job/torch.py",
        ),
    ],
)
def test_a_file_of_the_script_that_hides_a_module_is_named(tail: str, module: str, file: str) -> None:
    verdict = failed(TRACE + tail).verdict
    assert (verdict.code, file in verdict.fix) == ("import-broken", True)
    assert verdict.summary.endswith(f"in the script's folder was imported in place of the module {module}")


def test_own_modules_that_import_each_other_hide_none() -> None:
    left = '  File "/job/left.py", line 1, in <module>\n    import right\n'
    left += '  File "/job/right.py", line 2, in <module>\n    x\n'
    assert failed(f"{TRACE}{left}AttributeError: module 'left' has no attribute 'a'").verdict.code == "exception"


def test_a_name_that_an_own_module_lacks_is_not_looked_for_in_another_version() -> None:
    error = "ImportError: cannot import name 'load' from 'datasets' (/job/datasets.py)"
    assert failed(TRACE + error).verdict.fix.startswith("/job/datasets.py has no such name; if an installed package")


def test_a_step_that_fails_twice_claims_no_checkpoint_that_does_not_exist() -> None:
    found = failed(TRACE + "ZeroDivisionError: division by zero", reason="same-step-twice").verdict
    assert (found.code, found.fix.endswith("then windlass resume r-1 starts it again")) == ("same-step-twice", True)
    known = failed(
        TRACE + "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB", reason="same-step-twice"
    ).verdict
    assert (known.code, known.fix.startswith("a smaller batch, ")) == ("same-step-twice", True)
    saved = ("checkpoint", {"action": "saved", "step": 20, "name": "step-20"})
    found = failed(TRACE + "ZeroDivisionError: division by zero", reason="same-step-twice", more=[saved]).verdict
    assert found.fix.endswith("then windlass resume r-1 continues from step 20")


@pytest.mark.parametrize(
    ("line", "code", "fix"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14 GiB",
         "gpu-out-of-memory", "smaller batch"),
        ("tensorflow.python.ResourceExhaustedError: {{function_node x}} OOM when allocating tensor "
         "with shape[9] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
         "gpu-out-of-memory", "smaller batch"),
        ("tensorflow.python.ResourceExhaustedError: OOM when allocating tensor with shape[9] and "
         "type float on /job:localhost/replica:0/task:0/device:CPU:0 by allocator mklcpu",
         "out-of-memory", "ulimit -v"),
        ("jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 34359738368 bytes.",
         "gpu-out-of-memory", "smaller batch"),
        ("jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 34359738368 bytes.",
         "out-of-memory", "ulimit -v"),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", "gpu-driver-mismatch",
         "update the driver"),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors might "
         "be asynchronously reported at some other API call.", "gpu-architecture", "a newer torch for a new GPU"),
        ("RuntimeError: CUDA error: invalid device ordinal", "gpu-ordinal-invalid", "set_device(int(os.environ["),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu-broken", "windlass resume r-1"),
        ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", "gpu-broken", "node"),
        (f"{NCCL}ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 214 'uncorrectable "
         "ECC error encountered'", "gpu-broken", "node"),
        ("pynvml.NVMLError_GpuIsLost: GPU has fallen off the bus or has otherwise become inaccessible", "gpu-broken",
         "node"),
        ("RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable", "gpu-busy", "nvidia-smi"),
        ("torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", "gpu-busy",
         "nvidia-smi"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
         "gpu-out-of-memory", "smaller batch"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "gpu-out-of-memory", "smaller batch"),
        ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14 GiB",
         "gpu-out-of-memory", "smaller batch"),
        ("RuntimeError: Triton Error [CUDA]: out of memory", "gpu-out-of-memory", "smaller batch"),
        ("RuntimeError: CUDA error: device-side assert triggered", "gpu-error", "CUDA_LAUNCH_BLOCKING"),
        (f"{NCCL}ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
         "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 61000", "gpu-shared", "LOCAL_RANK"),
        (f"{NCCL}ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
         "gpu-out-of-memory", "smaller batch"),
        (f"{NCCL}ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 719 'unspecified "
         "launch failure'", "gpu-error", "CUDA_LAUNCH_BLOCKING"),
        ("RuntimeError: Cannot re-initialize CUDA in forked subprocess.", "cuda-after-fork", "spawn"),
        ("ModuleNotFoundError: No module named 'sklearn.svm'", "module-missing", "pip install scikit-learn"),
        ("ModuleNotFoundError: Requirement 'jsonargparse[signatures]>=4.27.7' not met. HINT: Try running "
         "`pip install -U 'jsonargparse[signatures]>=4.27.7'`",
         "module-missing", "-m pip install 'jsonargparse[signatures]>=4.27.7'"),
        ("ImportError: Using the `Trainer` with `PyTorch` requires `accelerate>=1.1.0`: Please run "
         "`pip install transformers[torch]` or `pip install 'accelerate>=1.1.0'`",
         "module-missing", "-m pip install 'transformers[torch]'"),
        ("ModuleNotFoundError: No module named 'PIL'", "module-missing", "pip install pillow"),
        ("ModuleNotFoundError: No module named 'windlass'", "module-missing", "do not install windlass from PyPI"),
        ("ImportError: cannot import name 'Checkpoint' from 'windlass.train' (a)", "import-broken", "the reference"),
        ("ModuleNotFoundError: No module named 'yaml'", "module-missing", "pip install PyYAML"),
        ("ModuleNotFoundError: No module named 'flash_attn'", "module-missing", "pip install flash-attn"),
        ("requests.exceptions.SSLError: HTTPSConnectionPool(host='hub', port=443): Max retries exceeded with url: /x "
         "(Caused by SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "
         "unable to get local issuer certificate (_ssl.c:1000)')))", "certificate-untrusted", "REQUESTS_CA_BUNDLE"),
        ("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub', port=443): Max retries exceeded with "
         "url: /x", "network-unreachable", "check that this node reaches it"),
        ("RuntimeError: unable to write to file </torch_4_1_0>: No space left on device (28)", "shm-full", "shm"),
        ("OSError: [Errno 122] Disk quota exceeded: '/out/model.pt'", "disk-full", "free some space"),
        ("OSError: [Errno 30] Read-only file system: '/out/x'", "permission-denied", "ls -ld /out/x"),
        ("RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.", "nan-loss", "learning rate"),
        ("ValueError: Default process group has not been initialized, please make sure to call init_process_group.",
         "process-group-missing", "init_process_group"),
        ("ValueError: You set `devices=2` and `num_nodes=1` in Lightning, but the product (2 * 1) does not match the "
         "world size (1).", "ranks-mismatch", "procs_per_node: 2"),
        ("ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK "
         "expected, but not set", "launcher-variables", "launcher: torchrun"),
        ("windlass.train.checkpoint.UnreadableCheckpoint: step-8 cannot be read, also after retries (EIO). No other",
         "checkpoint-unreadable", "windlass resume r-1, with --from NAME"),
        ('  File "<frozen os>", line 679, in __getitem__\nKeyError: \'LOCAL_RANK\'',
         "launcher-variables", "launcher: torchrun"),
        ("KeyError: 'RANK'", "exception", "train.py:7"),  # a dict of the script
        ("ValueError: coordinator_address should be defined.", "launcher-variables", "launcher: jax"),
        ('  File "/env/deepspeed/comm/comm.py", line 861, in mpi_discovery\n    from mpi4py import MPI\n'
         "ModuleNotFoundError: No module named 'mpi4py'", "launcher-variables", "launcher: torchrun"),
        ("ImportError: attempted relative import with no known parent package", "import-broken", "run: -m package"),
        ("AssertionError: shapes differ", "exception", "train.py:7"),
        ("FloatingPointError: loss value is nan", "nan-loss", "gradient clipping"),
        ("ValueError: loss_weight of the loss must be in [0, inf)", "exception", "train.py:7"),
        ("ValueError: grad_norm of the loss = -1 is not in (-inf, inf]", "exception", "train.py:7"),
        ("AssertionError: loss is tensor(nan)", "nan-loss", "learning rate"),
        ("AssertionError: loss is tensor(inf)", "nan-loss", "learning rate"),
        ("AssertionError: the loss is -inf", "nan-loss", "learning rate"),
        ("ValueError: Input X contains NaN.", "exception", "train.py:7"),
        ("ValueError: Input y contains infinity or a value too large for dtype('float32').", "exception", "train.py:7"),
    ],
)  # fmt: skip
def test_known_exceptions_have_their_own_codes(line: str, code: str, fix: str) -> None:
    verdict = failed(TRACE + line + "\n").verdict
    assert (verdict.code, verdict.rank) == (code, 0)
    assert fix in verdict.fix


class Diverged(Exception):
    """An exception whose name does not end in Error."""

    __module__ = "__main__"


def grouped() -> Exception:
    errors: list[Exception] = []
    for error in (ValueError("bad label"), KeyError("weights")):
        try:
            raise error
        except (ValueError, KeyError) as caught:
            errors.append(caught)
    return ExceptionGroup("unhandled errors in a TaskGroup", errors)


def noted() -> Exception:
    error = KeyError("x")
    error.add_note("while loading shard 7")
    error.add_note("ConfigError: a line of a note")
    return error


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (Diverged("loss went up"), "Diverged: loss went up"),
        (Diverged(), "Diverged"),
        (noted(), "KeyError: 'x'"),
        (RuntimeError("shapes differ:\nValueError: not this"), "RuntimeError: shapes differ:"),
        (grouped(), "ValueError: bad label"),
        (ExceptionGroup("never raised", [ValueError("bad label"), KeyError("x")]), "ValueError: bad label"),
        (ExceptionGroup("outer", [grouped(), KeyError("x")]), "ValueError: bad label"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
def test_an_exception_is_named_by_the_first_line_below_its_frames(error: Exception, line: str, prefix: str) -> None:
    try:
        raise error
    except type(error) as caught:
        text = "".join(traceback.format_exception(caught))
    late = "UserWarning: there appear to be 3 leaked semaphores\nRuntimeError: cannot join thread, ignored\n"
    found = failed("step 1\n" + "".join(prefix + each for each in text.splitlines(keepends=True)) + late).verdict
    assert (found.code, found.evidence[0]) == ("exception", line)
    assert "Traceback" not in str(found.evidence)


def test_an_exception_of_which_python_says_that_it_is_ignored_is_not_the_cause() -> None:
    ignored = "Exception ignored in: <function Loader.__del__ at 0x7f0>\n" + TRACE + "AttributeError: _workers\n"
    assert failed(TRACE + "Diverged: loss went up\n" + ignored).verdict.evidence[0] == "Diverged: loss went up"
    assert failed(ignored + "no data\n").verdict.code == "exit-code"


def test_torchs_prefixes_do_not_hide_a_traceback() -> None:
    tail = "".join(f"[rank0]: {line}\n" for line in (TRACE + "KeyError: 'w'").splitlines())
    assert failed(tail).verdict.summary == "the script raised KeyError: 'w'"


@pytest.mark.parametrize(
    ("option", "launcher"), [("--local_rank", "deepspeed"), ("--local-rank", "distributed.launch")]
)
def test_a_script_that_does_not_take_what_its_launcher_passes_is_told_how_to_do_without(
    option: str, launcher: str
) -> None:
    tail = f"usage: train.py [-h]\ntrain.py: error: unrecognized arguments: {option}=0\n"
    cause = {"rank": 0, "summary": "", "exit_code": 2, "traceback": "", "victims": []}
    case = seen(ranks=[RankSeen(0, exit_code=2, ended_at=103.0, tail=tail)], cause=cause, exit_code=2)
    passed = diagnose(
        replace(case, plan=replace(NO_PLAN, job={"run": f"train.py '{option}=$WINDLASS_LOCAL_RANK'"}))
    ).verdict
    typed = diagnose(replace(case, plan=replace(NO_PLAN, job={"run": f"train.py {option}=0"}))).verdict
    assert (passed.code, typed.code) == ("wrong-arguments", "wrong-arguments")
    assert launcher in passed.fix
    assert "change the arguments" in typed.fix


@pytest.mark.parametrize(
    ("tail", "exit_code", "said"),
    [
        ("usage: t fit [-h] --data DATA\nt fit: error: the following arguments are required: --data", 2,
         "the following arguments are required: --data"),
        ("uso: train.py [-h]\ntrain.py: error: argumentos no reconocidos: --lrr", 2,
         "argumentos no reconocidos: --lrr"),
        ("FATAL Flags parsing error:\n  Unknown command line flag 'lr'. Did you mean: rate ?\nPass --helpshort", 1,
         "Unknown command line flag 'lr'. Did you mean: rate ?"),
        ("Could not override 'optim.lrr'.\nKey 'lrr' is not in struct\n\nSet the environment variable "
         "HYDRA_FULL_ERROR=1 for a complete stack trace.", 1, "Could not override 'optim.lrr'."),
        ("Usage: train.py [OPTIONS] DATA\n╭─ Error ────╮\n│ Missing argument 'DATA'.  │\n╰────────────╯", 2,
         "Missing argument 'DATA'."),
        (TRACE + "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--lrr', '3']", 1,
         "['--lrr', '3']"),
        ("usage: child.py [-h]\nchild.py: error: unrecognized arguments: --lrr\n" + TRACE +
         "subprocess.CalledProcessError: Command '['python']' returned non-zero exit status 2.", 1,
         "unrecognized arguments: --lrr"),
    ],
)  # fmt: skip
def test_arguments_are_refused_in_the_words_of_each_library(tail: str, exit_code: int, said: str) -> None:
    verdict = failed(tail + "\n", exit_code).verdict
    assert (verdict.code, verdict.summary.removesuffix(" at train.py:7")) == (
        "wrong-arguments",
        f"the script refuses its arguments: {said}",
    )


@pytest.mark.parametrize(
    ("frames", "error", "code", "said"),
    [
        ("    fcntl.flock(f, LOCK_EX | LOCK_NB)", "BlockingIOError: [Errno 11] Resource temporarily unavailable",
         "lock-held", "another process has the lock"),
        ("    lock.acquire()", "filelock._error.Timeout: The file lock '/x.lock' could not be acquired.", "lock-held",
         "lslocks"),
        ("    self.pid = os.fork()", "BlockingIOError: [Errno 11] Resource temporarily unavailable",
         "too-many-processes", "may not start one more"),
        ("    sock.recv(1)", "BlockingIOError: [Errno 11] Resource temporarily unavailable", "exception", "raised"),
        ('  File "/usr/lib/python3.11/subprocess.py", line 9, in _execute_child\n    raise child_exception_type()',
         "FileNotFoundError: [Errno 2] No such file or directory: 'ffmpeg'", "program-missing", "install ffmpeg"),
        ("    os.nice(-5)", "PermissionError: [Errno 1] Operation not permitted", "permission-denied", "capability"),
        ("    read(9)", "OSError: [Errno 116] Stale file handle: '/data/x'", "file-system-failed", "mount"),
        ("    read(9)", "OSError: [Errno 5] Input/output error: '/data/x'", "file-system-failed", "mount"),
        ("    read(9)", "OSError: [Errno 107] Transport endpoint is not connected", "exception", "raised"),
    ],
)  # fmt: skip
def test_an_error_number_means_what_its_call_was_for(frames: str, error: str, code: str, said: str) -> None:
    verdict = failed(
        f'Traceback (most recent call last):\n  File "/job/train.py", line 3, in run\n{frames}\n{error}\n'
    ).verdict
    assert verdict.code == code
    assert said in f"{verdict.summary} {verdict.fix}"


@pytest.mark.parametrize(
    ("after", "is_over"),
    [("config.toml has no section [model]\n", True), ("", False), ("step 5/5 loss 0.200\n", False)],
)
def test_an_exception_of_a_thread_is_over_where_the_script_then_says_something_else(after: str, is_over: bool) -> None:
    tail = f"Exception in thread Thread-1 (f):\n{TRACE}OSError: dropped\nstep 1/5 loss 1.000\n{after}"
    assert (since_handled(tail) != tail) == is_over


def test_a_program_that_a_shell_of_another_language_does_not_find_is_named() -> None:
    verdict = failed("bash: Zeile 1: torchrunn: Kommando nicht gefunden.\n", 127).verdict
    assert (verdict.code, verdict.summary) == ("program-missing", "the shell has not found torchrunn")


GUARD = """Traceback (most recent call last):
  File "<string>", line 1, in <module>
  File "/job/train.py", line 12, in <module>
    worker.start()
  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 164, in get_preparation_data
    _check_not_importing_main()
RuntimeError: 
        An attempt has been made to start a new process before the
        current process has finished its bootstrapping phase.
"""  # noqa: W291
METHOD = GUARD.replace("    worker.start()\n", "    set_start_method('spawn')\n").replace(
    'File "<string>", line 1, in <module>', 'File "/p/multiprocessing/spawn.py", line 9, in _fixup_main_from_path'
)
METHOD = METHOD.partition("RuntimeError: ")[0] + "RuntimeError: context has already been set\n"
STEP = ("progress", {"step": 3, "rank": 0})


@pytest.mark.parametrize(
    ("after", "fields", "code"),
    [
        ("the worker exited with 1\n", {}, "main-guard-missing"),
        (TRACE + "RuntimeError: DataLoader worker (pid(s) 71) exited unexpectedly\n", {}, "main-guard-missing"),
        (TRACE + "EOFError\n", {}, "main-guard-missing"),
        (TRACE + "ValueError: bad batch\n", {"more": [STEP]}, "exception"),  # the attempt trained after that
    ],
)
def test_a_missing_main_guard_is_named_whatever_the_script_makes_of_it(
    after: str, fields: dict[str, Any], code: str
) -> None:
    verdict = failed(GUARD + after, **fields).verdict
    assert (verdict.code, verdict.rank) == (code, 0)
    assert ("train.py:12" in verdict.summary) == (code == "main-guard-missing")


@pytest.mark.parametrize("phase", [Phase.TRAINING, Phase.FAILED])
@pytest.mark.parametrize("error", [GUARD, METHOD])
def test_a_missing_main_guard_explains_a_script_that_starts_processes_or_waits_for_ever(
    phase: Phase, error: str
) -> None:
    ranks = [RankSeen(0, tail=error * 9)]
    verdict = diagnose(
        seen(
            phase,
            ranks=ranks,
            cause={"summary": "the timeout"} if phase is Phase.FAILED else None,
            exit_code=124,
            reason="timeout",
        )
    ).verdict
    assert (verdict.code, "train.py:12" in verdict.summary) == ("main-guard-missing", True)
    assert " ".join(error.strip().splitlines()[-1].split()[-4:]).rstrip(".") in verdict.evidence[0]


def test_sigkill_is_want_of_memory_only_where_the_kernel_counted_it() -> None:
    assert failed(exit_code=-9, host={"oom_kills_of_group": 1}).verdict.code == "oom-killed"
    assert failed(exit_code=137, host={"oom_kills_of_machine": 1}).verdict.code == "oom-killed"
    killed = failed(exit_code=-9, host={"oom_kills_of_group": 0, "oom_kills_of_machine": 0}).verdict
    assert killed.code == "killed"
    assert "no OOM kill" in " ".join(killed.evidence)


def test_sigkill_without_counters_is_most_often_want_of_memory() -> None:
    killed = failed(exit_code=-9).verdict
    assert (killed.code, "from outside" in killed.summary) == ("killed", False)
    assert "most often for want of memory (no counter of OOM kills could be read)" in killed.summary
    assert "more memory" in killed.fix
    counted = failed(exit_code=-9, host={"oom_kills_of_machine": 0}).verdict
    assert "from outside" in counted.summary


@pytest.mark.parametrize(
    ("host", "code", "said", "fix"),
    [
        ({"oom_kills_of_group": 1}, "oom-killed", "more memory than there is", "fewer DataLoader workers"),
        ({}, "dataloader-worker-died", "no counter of OOM kills could be read", "a smaller prefetch_factor"),
        ({"oom_kills_of_group": 0}, "dataloader-worker-died", "from outside (SIGKILL)", "kill -9 by hand"),
    ],
)
def test_killed_dataloader_worker_has_no_error_of_its_own(host: dict[str, int], code: str, said: str, fix: str) -> None:
    error = "RuntimeError: DataLoader worker (pid 71) is killed by signal: Killed. "
    verdict = failed(f"{TRACE}{error}\n", host=host).verdict
    assert (verdict.code, "num_workers=0" in verdict.fix) == (code, False)
    assert said in verdict.summary
    assert fix in verdict.fix


def test_a_bus_error_is_shared_memory_only_where_that_is_full() -> None:
    assert failed(exit_code=-7, host={"shm_free_bytes": 0, "shm_bytes": 1 << 26}).verdict.code == "shm-full"
    assert failed(exit_code=-7, host={"shm_free_bytes": 1 << 33, "shm_bytes": 1 << 34}).verdict.code == "bus-error"


def test_a_crash_refers_to_a_line_only_where_one_is_known() -> None:
    fault = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x7f (most recent call first):\n"
    known = fault + '  File "/job/train.py", line 7 in step\n'
    assert "on that line" in failed(known, exit_code=-11).verdict.fix
    assert "that line" not in failed("Segmentation fault\n", exit_code=-11).verdict.fix


def test_victims_alone_mean_a_lost_connection_unless_a_rank_left() -> None:
    cause = {"rank": 0, "summary": "", "exit_code": 1, "victims": [1]}
    gone = [RankSeen(number, exit_code=1, ended_at=103.0, tail=PEER_GONE) for number in (0, 1)]
    assert diagnose(seen(ranks=gone, cause=cause)).verdict.code == "connection-lost"
    left = diagnose(seen(ranks=[gone[0], RankSeen(1, exit_code=0, ended_at=102.0)], cause=cause)).verdict
    assert (left.code, left.rank) == ("rank-left-early", 1)


@pytest.mark.parametrize(
    "line",
    [
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "urllib.error.URLError: <urlopen error [Errno 104] Connection reset by peer>",
        "redis.exceptions.ConnectionError: Error 111 connecting to localhost:6379. Connection refused.",
    ],
)
def test_a_connection_to_a_server_is_none_to_a_peer(line: str) -> None:
    cause = first_cause([RankFailure(0, 1, 9.0, PEER_GONE), RankFailure(1, 1, 9.5, TRACE + line)])
    assert cause is not None
    assert (cause.rank, cause.summary) == (1, line)
    ranks = [
        RankSeen(number, exit_code=1, ended_at=9.0, tail=tail) for number, tail in enumerate((PEER_GONE, TRACE + line))
    ]
    verdict = diagnose(seen(ranks=ranks, cause=cause.to_json())).verdict
    assert (verdict.code, verdict.rank, line in verdict.summary) == ("exception", 1, True)
    own = RankFailure(1, 1, 9.9, TRACE + "KeyError: 'x'")  # the connection may have been one between ranks
    cause = first_cause([RankFailure(0, 1, 9.5, TRACE + line), own])
    assert cause is not None
    assert cause.rank == 1


@pytest.mark.parametrize(
    "line",
    [
        "psycopg.OperationalError: connection failed: failed to connect to the database",
        "feast.errors.OnlineStoreError: the feature store reports Timeout",
    ],
)
def test_a_server_that_is_not_reached_is_no_rendezvous(line: str) -> None:
    assert failed(TRACE + line).verdict.code == "exception"
    in_torch = TRACE + '  File "/env/torch/distributed/rendezvous.py", line 9, in _create_c10d_store\n'
    assert failed(in_torch + "RuntimeError: The client socket has timed out").verdict.code == "rendezvous-timeout"


@pytest.mark.parametrize(
    ("tail", "code", "said"),
    [
        ("huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/x",
         "hub-rate-limited", "setup:"),
        ("urllib.error.HTTPError: HTTP Error 429: Too Many Requests", "hub-rate-limited", "setup:"),
        ("httpx.HTTPStatusError: Client error '429 Too Many Requests' for url 'https://hub.example/x'",
         "hub-rate-limited", "setup:"),
        ("huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/x\n"
         "\nThe above exception was the direct cause of the following exception:\n\n" + TRACE +
         "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the "
         "cached files.", "hub-rate-limited", "setup:"),
        ("huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files in the disk cache and "
         "outgoing traffic has been disabled.", "hub-file-missing", "no request is made"),
        ("huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub "
         "and we cannot find the requested files in the local cache.", "hub-file-missing", "could not be reached"),
        ("OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the "
         "cached files.", "hub-file-missing", "could not be reached"),
        ("EOFError: EOF when reading a line", "no-terminal", "asks for input"),
        ('  File "/usr/lib/python3.11/getpass.py", line 9, in _raw_input\nEOFError', "no-terminal", "secrets:"),
        ("wandb.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])",
         "no-terminal", "WANDB_API_KEY"),
        ("bdb.BdbQuit", "no-terminal", "PYTHONBREAKPOINT"),
        ("EOFError: Ran out of input", "file-corrupt", "damaged"),
        ("EOFError", "exception", "EOFError"),
    ],
)  # fmt: skip
def test_hubs_and_prompts_have_fixes_before_ranks_start(tail: str, code: str, said: str) -> None:
    verdict = failed(f"{TRACE}{tail}\n").verdict
    assert verdict.code == code
    assert said in f"{verdict.summary} {verdict.fix}"


@pytest.mark.parametrize(
    "text",
    [
        "There are not enough slots available in the system to satisfy the 64\nslots that were requested by",
        "All nodes which are allocated for this job are already filled.",
    ],
)
def test_mpirun_without_slots_is_told_to_be_started_by_windlass(text: str) -> None:
    verdict = failed(f"----\n{text}\n----\n").verdict
    assert (verdict.code, "windlass run -- mpirun" in verdict.fix) == ("mpi-no-slots", True)


def test_a_port_that_a_process_of_the_rank_itself_has_is_in_use_by_that_process() -> None:
    tail = (
        TRACE + "OSError: [Errno 98] error while attempting to bind on address ('0.0.0.0', 7): address already in use"
    )
    for group, said in ((5, "python (pid 9), which the script has started"), (6, "in use by python (pid 9)")):
        facts = {"listeners": [{"port": 7, "pid": 9, "group": group, "name": "python"}]}
        verdict = failed(tail, host=facts, more=[("rank", {"rank": 0, "pid": 5})]).verdict
        assert verdict.summary.endswith(said)


IN_USE = TRACE + "OSError: [Errno 98] Address already in use\n"


@pytest.mark.parametrize(
    ("tail", "facts", "said"),
    [
        (IN_USE, {"listeners": [{"port": 7, "pid": 3, "group": 3, "name": "nginx"}]}, "in use by another program"),
        (
            TRACE
            + "OSError: [Errno 98] error while attempting to bind on address ('0.0.0.0', 7): address already in use",
            {"listeners": [{"port": 7, "pid": 3, "group": 3, "name": "nginx"}]},
            "port 7 that the script wants to listen on is in use by nginx (pid 3)",
        ),
        (
            TRACE + "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
            "address. port: 29500, useIpv6: 0, code: -98, name: EADDRINUSE, message: address already in use\n",
            {"listeners": [{"port": 29500, "pid": 3, "group": 3, "name": "nginx"}]},
            "port 29500 that the script wants to listen on is in use by nginx (pid 3)",
        ),
        (
            TRACE + "lightgbm.basic.LightGBMError: Binding port 29511 failed\n",
            {"reserved_port": 29511},
            "the script could not bind MASTER_PORT (29511): Windlass keeps it",
        ),
    ],
)
def test_port_in_use_is_reported_with_its_process(tail: str, facts: dict[str, Any], said: str) -> None:
    verdict = failed(tail, host=facts).verdict
    assert verdict.code == "port-taken"
    assert said in verdict.summary


def stack(*places: tuple[str, int, str]) -> str:
    lines = [f'  File "{file}", line {line} in {name}' for file, line, name in places]
    return "Current thread 0x01 (most recent call first):\n" + "\n".join(lines) + "\n"


C10D = "/venv/site-packages/torch/distributed/distributed_c10d.py"
IN_ALL_REDUCE = stack((C10D, 4181, "all_reduce"), ("/job/train.py", 9, "main"))
IN_BACKWARD = stack(
    ("/venv/site-packages/torch/autograd/graph.py", 5, "_engine_run_backward"), ("/job/train.py", 8, "m")
)
IN_LOADING = stack(("/job/data.py", 3, "read"), ("/job/train.py", 4, "main"))


def hang(*stacks: str, states: str = "SSSS", reason: str = "silence") -> tuple[str, dict[str, Any]]:
    ranks = [{"rank": n, "state": states[n], "stack": text} for n, text in enumerate(stacks)]
    return "hang", {"node": 0, "reason": reason, "since": 50.0, "seconds": 60.0, "ranks": ranks}


@pytest.mark.parametrize(
    ("stacks", "states", "code", "rank"),
    [
        ((IN_ALL_REDUCE, IN_LOADING, IN_ALL_REDUCE), "SSS", "collective-not-joined", 1),
        ((IN_ALL_REDUCE, "", IN_ALL_REDUCE), "STS", "rank-frozen", 1),
        ((IN_ALL_REDUCE, IN_BACKWARD, IN_ALL_REDUCE), "SSS", "collective-mismatch", 1),
        ((IN_ALL_REDUCE, IN_ALL_REDUCE), "SS", "collective-stuck", None),
        ((IN_LOADING, IN_LOADING), "SS", "hang", None),
    ],
)
def test_stacks_show_missing_rank(stacks: tuple[str, ...], states: str, code: str, rank: int | None) -> None:
    ranks = [RankSeen(number, last_output_at=40.0) for number in range(len(stacks))]
    verdict = diagnose(seen(Phase.TRAINING, ranks=ranks, more=[hang(*stacks, states=states)])).verdict
    assert (verdict.code, verdict.rank) == (code, rank)


FILE_LOCK = "/venv/site-packages/filelock/_api.py"


def test_a_rank_that_waits_for_a_file_lock_is_told_with_those_that_wait_for_it() -> None:
    in_lock = stack((FILE_LOCK, 9, "acquire"), (FILE_LOCK, 20, "__enter__"), ("/job/train.py", 4, "main"))
    for stacks, said in (
        ((IN_ALL_REDUCE, in_lock), "rank 1 waits for a file lock at train.py:4, and rank 0 waits for it in all_reduce"),
        ((in_lock, in_lock), "ranks 0, 1 wait for a file lock at train.py:4, and no rank makes progress"),
    ):
        ranks = [RankSeen(number, last_output_at=40.0) for number in range(2)]
        verdict = diagnose(seen(Phase.TRAINING, ranks=ranks, more=[hang(*stacks)])).verdict
        assert (verdict.code, verdict.summary) == ("lock-held", said)


def test_a_call_that_locks_a_file_is_known_by_its_source_line() -> None:
    ranks = [RankSeen(number, last_output_at=40.0) for number in range(2)]
    case = seen(Phase.TRAINING, ranks=ranks, more=[hang(IN_ALL_REDUCE, IN_LOADING)])
    assert diagnose(case).verdict.code == "collective-not-joined"
    locks = replace(case, sources={"/job/data.py:3": "    fcntl.flock(file, fcntl.LOCK_EX)"})
    assert diagnose(locks).verdict.code == "lock-held"


def test_a_silence_that_ended_is_no_hang() -> None:
    ranks = [RankSeen(0, last_output_at=900.0), RankSeen(1, last_output_at=40.0)]
    found = diagnose(seen(Phase.TRAINING, ranks=ranks, more=[hang(IN_ALL_REDUCE, IN_LOADING)]))
    assert (found.verdict.code, found.others) == ("none", ())


def test_user_stop_is_the_cause_and_stacks_are_shown_in_addition() -> None:
    ranks = [RankSeen(0, last_output_at=40.0), RankSeen(1, last_output_at=40.0)]
    stop = ("stop", {"now": False, "reason": "asked"})
    more = [hang(IN_ALL_REDUCE, IN_LOADING, reason="stop"), stop]
    found = diagnose(seen(Phase.STOPPED, ranks=ranks, more=more))
    assert found.verdict.code == "stopped"
    assert [other.code for other in found.others] == ["collective-not-joined"]


def test_a_rank_that_waited_too_long_for_something_else_is_the_cause_whatever_the_others_wait_for() -> None:
    late = TRACE + "TimeoutError: timed out reading shard 3\n"
    ranks = [RankSeen(0, exit_code=-15, ended_by_us=True), RankSeen(1, exit_code=1, ended_at=103.0, tail=late)]
    cause = {"rank": 1, "summary": "", "exit_code": 1, "victims": []}
    more = [hang(IN_ALL_REDUCE, "", reason="failure")]
    assert diagnose(seen(ranks=ranks, cause=cause, more=more)).verdict.code == "exception"


SAVED = ("checkpoint", {"action": "saved", "step": 1200, "name": "step-00001200-a2f3c1"})
REFUSED = ("checkpoint", {"action": "refused", "step": 1200, "name": "step-00001200-a2f3c1", "reason": "torn"})


@pytest.mark.parametrize(
    ("more", "gives"),
    [
        ((), "starts it again"),
        ((SAVED,), "continues from step 1,200"),
        ((SAVED, REFUSED), "starts it again"),
    ],
    ids=["no-checkpoint", "saved", "damaged"],
)
@pytest.mark.parametrize(
    ("phase", "exit_code", "cause", "facts"),
    [
        (Phase.STOPPED, 0, None, {}),
        (Phase.LOST, 1, {"summary": "gone"}, {}),
        (Phase.LOST, 1, {"summary": "gone"}, {"machine": MachineFacts(booted_at=5000.0)}),
        (Phase.LOST, 1, {"summary": "gone"}, {"supervisor_traceback": "Traceback\nKeyError: 1"}),
        (Phase.FAILED, 124, {"summary": "the timeout of 60 s was reached"}, {}),
        (Phase.FAILED, 1, {"summary": "node 0 is gone", "node_lost": 0}, {}),
    ],
    ids=["stopped", "lost", "rebooted", "crashed", "timeout", "node-lost"],
)
def test_after_an_end_that_is_not_the_scripts_fault_the_next_command_is_resume(
    phase: Phase, exit_code: int, cause: dict[str, Any] | None, facts: dict[str, Any], more: Any, gives: str
) -> None:
    begun = ("rank", {"rank": 0, "pid": 7})
    case = replace(seen(phase, cause=cause, exit_code=exit_code, more=(begun, *more)), **facts)
    verdict = diagnose(case).verdict
    assert f"windlass resume r-1 {gives}" in verdict.fix
    assert "windlass run" not in verdict.fix


def test_a_machine_that_came_up_after_the_run_began_was_restarted() -> None:
    lost = diagnose(seen(Phase.LOST, cause={"summary": "gone"})).verdict
    assert "killed" in lost.summary
    found = seen(Phase.LOST, cause={"summary": "gone"})
    booted = Observations(found.status, NO_PLAN, found.events, machine=MachineFacts(booted_at=5000.0))
    assert "restarted" in diagnose(booted).verdict.summary


@pytest.mark.parametrize(("booted_at", "word"), [(103.5, "killed"), (5000.0, "restarted")])
def test_a_machine_that_came_up_before_the_run_was_resumed_did_not_end_it(booted_at: float, word: str) -> None:
    more: list[tuple[str, dict[str, Any]]] = [
        ("end", {"phase": "failed", "exit_code": 1}),
        ("resume", {"from": None}),
        ("attempt", {"number": 2}),
    ]
    found = seen(Phase.LOST, cause={"summary": "gone"}, more=more)
    booted = Observations(found.status, NO_PLAN, found.events, machine=MachineFacts(booted_at=booted_at))
    verdict = diagnose(booted).verdict
    assert word in verdict.summary
    assert ("the machine booted 4896 s after the run was resumed" in verdict.evidence) == (word == "restarted")


@pytest.mark.parametrize("reason", ["File is not a zip file", "No such file or directory: 'model-5.pt'"])
def test_a_named_checkpoint_that_is_not_whole_is_told_with_how_to_go_on_without_it(reason: str) -> None:
    cause = {"summary": f"could not start: cannot resume from model-5.pt: {reason}"}
    verdict = diagnose(seen(Phase.FAILED, cause=cause)).verdict
    assert verdict.code == "could-not-start"
    assert "windlass resume" in verdict.fix


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        ("/job/ni.sh", "program-missing", "/job/ni.sh, or the interpreter in its first line, does not exist"),
        ("/job/.venv/bin/python", "interpreter-missing", "started: /job/.venv/bin/python does not exist"),
    ],
)
def test_a_program_that_is_not_there_is_told_without_the_reason_in_its_name(program: str, code: str, said: str) -> None:
    tail = f"could not start: {program}, No such file or directory"
    made = seen(ranks=[RankSeen(0, exit_code=127, tail=tail)], cause={"rank": 0, "summary": tail, "exit_code": 127})
    verdict = diagnose(replace(made, plan=PLAN_OF_PYTHON)).verdict
    assert (verdict.code, verdict.summary.endswith(said)) == (code, True)


def test_failed_run_always_has_a_problem() -> None:
    for phase in (Phase.FAILED, Phase.LOST, Phase.STOPPED):
        assert diagnose(seen(phase, cause={"summary": "something unknown"})).verdict.code != "none"
    assert diagnose(seen(Phase.SUCCEEDED, exit_code=0)).verdict.code == "none"


@pytest.mark.parametrize(
    ("line", "module"),
    [
        ("/usr/bin/python3.12: No module named nopkg.train", "nopkg.train"),
        (
            "/v/bin/python: Error while finding module specification for 'nopkg.train' (ModuleNotFoundError: No module "
            "named 'nopkg')",
            "nopkg",
        ),
    ],
)
def test_a_module_that_run_names_and_python_does_not_find_is_named(line: str, module: str) -> None:
    verdict = failed(f"{line}\n").verdict
    assert (verdict.code, verdict.summary) == ("module-missing", f"there is no module {module}, which run: names")


def test_apostrophe_is_not_a_quotation_mark() -> None:
    tail = TRACE + "FileNotFoundError: can't find a module script at '/job/tasks/train.py'\n"
    verdict = failed(tail).verdict
    assert (verdict.code, verdict.summary) == (
        "file-missing",
        "the script needs /job/tasks/train.py, which does not exist",
    )


def test_the_code_of_the_cause_counts_where_a_launcher_ended_the_rank_by_a_signal() -> None:
    words = "-----\nProcess name: [[1,2],0]\nExit code:    1\n-----\nmpirun ended the ranks while ranks were running\n"
    rank = RankSeen(0, exit_code=-15, ended_at=103.0, tail="ready\n" + words)
    verdict = diagnose(seen(ranks=[rank], cause={"rank": 0, "summary": "", "exit_code": 1, "victims": []})).verdict
    assert verdict.code == "exit-code"
    assert "SIGTERM" not in verdict.summary


def test_a_world_of_mpi_that_is_smaller_than_the_job_is_the_cause() -> None:
    words = "mpirun started a world of 2 ranks, and the job has 6"
    rank = RankSeen(0, exit_code=1, ended_at=103.0, tail=words)
    verdict = diagnose(seen(ranks=[rank], cause={"rank": 0, "summary": words, "exit_code": 1, "victims": []})).verdict
    assert (verdict.code, verdict.summary) == ("ranks-mismatch", "MPI has a world of 2 ranks, and the job has 6")
    assert "PRTE_MCA_prte_default_hostfile" in verdict.fix


def test_line_of_dashes_is_not_a_last_line() -> None:
    assert failed("no vocabulary\n----------\n").verdict.summary.endswith("its last line: no vocabulary")


@pytest.mark.parametrize("tail", ["", "no vocabulary\n"])
def test_a_program_that_is_no_python_is_not_searched_for_calls_of_python(tail: str) -> None:
    plan = replace(NO_PLAN, nodes=NO_NODES.replace(argv=("bash", "-c", "false")))
    made = seen(ranks=[RankSeen(0, exit_code=1, ended_at=103.0, tail=tail)], cause={"rank": 0, "exit_code": 1})
    assert "sys.exit" in diagnose(replace(made, plan=PLAN_OF_PYTHON)).verdict.fix
    assert "sys.exit" not in diagnose(replace(made, plan=plan)).verdict.fix


PLAN_OF_PYTHON = replace(NO_PLAN, nodes=NO_NODES.replace(argv=("/job/.venv/bin/python", "/w/worker/rank.py", "t.py")))


@pytest.mark.parametrize(
    ("environment", "fix"),
    [
        ({"kind": "uv-project"}, "uv add scikit-learn"),
        ({"kind": "poetry"}, "poetry add scikit-learn"),
        ({"kind": "uv"}, "uv pip install --python /job/.venv/bin/python scikit-learn"),
        ({"kind": "conda", "prefix": "/opt/conda/envs/t"}, "conda install -p /opt/conda/envs/t"),
        ({"kind": "venv"}, "/job/.venv/bin/python -m pip install scikit-learn"),
        ({}, "/job/.venv/bin/python -m pip install scikit-learn"),
    ],
)
def test_a_missing_module_is_installed_as_its_environment_wants_it(environment: dict[str, str], fix: str) -> None:
    tail = TRACE + "ModuleNotFoundError: No module named 'sklearn'\n"
    cause = {"rank": 0, "summary": "", "exit_code": 1, "victims": []}
    made = seen(ranks=[RankSeen(0, exit_code=1, ended_at=103.0, tail=tail)], cause=cause)
    found = diagnose(
        replace(made, plan=PLAN_OF_PYTHON, machine=MachineFacts(environment=Environment(**environment)))
    ).verdict
    assert found.code == "module-missing"
    assert fix in found.fix
    on_a_cluster = diagnose(replace(made, plan=PLAN_OF_PYTHON, image="ours/trainer:1")).verdict
    assert "add scikit-learn to the image" in on_a_cluster.fix


def test_what_manages_an_environment_is_found_by_its_files(tmp_path: Path) -> None:
    def made(prefix: str, *files: str, config: str | None = None) -> str:
        for name in files:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        folder = tmp_path / prefix
        folder.mkdir(parents=True, exist_ok=True)
        if config is not None:
            (folder / "pyvenv.cfg").write_text(config)
        return str(folder / "bin" / "python")

    def kind(python: str, code_dir: str) -> str:
        return environment(python, str(tmp_path / code_dir)).kind

    uv = "home = /usr/bin\nuv = 0.9.2\n"
    assert kind(made("a/.venv", "a/uv.lock", config=uv), "a/src") == "uv-project"
    assert kind(made("b/.venv", config=uv), "b") == "uv"
    # not the project's own environment
    assert kind(made("b/other", "b/uv.lock", config="home = /usr/bin\n"), "b") == "venv"
    assert kind(made("c/env", "c/poetry.lock", config="home = /usr/bin\n"), "c") == "poetry"
    assert kind(made("d/env", "d/env/conda-meta/history"), "d") == "conda"
    assert kind(made("e"), "e") == "system"
    assert environment("", "") == Environment()


# -- losses -----------------------------------------------------------------------------------------------------------

Told = list[tuple[str, dict[str, Any]]]


def progress(step: int, loss: object, **more: Any) -> tuple[str, dict[str, Any]]:
    return "progress", {"rank": 0, "step": step, "loss": loss, **more}


def change(rank: int, step: int, good: float) -> tuple[str, dict[str, Any]]:
    return "loss", {"rank": rank, "step": step, "loss": "nan", "last": {"loss": good, "step": step - 1}}


def never_finite(step: int) -> tuple[str, dict[str, Any]]:
    """Returns the loss of an attempt that continues from a checkpoint with NaN."""
    return "loss", {"rank": 0, "step": step, "loss": "nan"}


AGAIN: Told = [("attempt-end", {"phase": "failed"}), ("attempt", {"number": 2, "world_size": 1, "nodes": [[0]]})]
LOSSES: dict[str, tuple[Told, list[str]]] = {
    "what the worker saw, whatever little was recorded": (
        [progress(1, 2.5), change(0, 61, 0.25), progress(900, "nan")],
        ["the last loss that was reported: nan", "the first one that was not finite: nan at step 61",
         "the last good one: 0.25 at step 60"],
    ),
    "of the rank of the progress, not of another": (
        [progress(1, 2.5), change(1, 40, 0.75), change(0, 61, 0.25), progress(900, "nan")],
        ["the last loss that was reported: nan", "the first one that was not finite: nan at step 61",
         "the last good one: 0.25 at step 60"],
    ),
    "of the newest attempt": (
        [progress(1, 2.5), change(0, 61, 0.25), progress(900, "nan"), *AGAIN, progress(3, 3.5), change(0, 5, 3.25),
         progress(7, "nan")],
        ["the last loss that was reported: nan", "the first one that was not finite: nan at step 5",
         "the last good one: 3.25 at step 4"],
    ),
    "of the attempt in which it became NaN, where the newest one goes on from a checkpoint with NaN in it": (
        [progress(1, 2.5), change(1, 40, 0.75), change(0, 61, 0.25), progress(900, "nan"), *AGAIN, never_finite(71),
         *AGAIN, never_finite(71), progress(80, "nan")],
        ["the last loss that was reported: nan", "the first one that was not finite: nan at step 61",
         "the last good one: 0.25 at step 60"],
    ),
    "of the newest attempt, if it goes on from before the step of the attempt before": (
        [progress(1, 2.5), change(0, 61, 0.25), progress(900, "nan"), *AGAIN, never_finite(41), progress(80, "nan")],
        ["the last loss that was reported: nan", "the first one that was not finite: nan at step 41"],
    ),
    "of an old record: the last finite one before it was no longer so": (
        [progress(1, 2.5), progress(60, 0.25), progress(61, "nan"), progress(70, "inf")],
        ["the last loss that was reported: inf", "the first one that was not finite: nan at step 61",
         "the last good one: 0.25 at step 60"],
    ),
    "of an old record of two attempts": (
        [progress(1, 2.5), progress(60, 0.25), *AGAIN, progress(5, "nan")],
        ["the last loss that was reported: nan", "the first one that was not finite: nan at step 5"],
    ),
    "one that was finite again meanwhile": (
        [progress(1, 2.5), progress(2, "nan"), progress(60, 0.25), progress(61, "nan")],
        ["the last loss that was reported: nan", "the first one that was not finite: nan at step 61",
         "the last good one: 0.25 at step 60"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_the_last_good_loss_is_the_last_finite_one_before_it_became_nan(name: str) -> None:
    more, evidence = LOSSES[name]
    verdict = diagnose(seen(Phase.SUCCEEDED, ranks=[RankSeen(0, exit_code=0)], exit_code=0, more=more)).verdict
    assert verdict.code == "nan-loss"
    assert list(verdict.evidence) == evidence


def test_the_message_of_a_script_that_found_nan_is_quoted_once() -> None:
    assert failed(TRACE + "ValueError: loss is nan\n").verdict.evidence[0] == "ValueError: loss is nan"


def test_a_loss_of_an_attempt_before_says_nothing_of_one_that_reported_none() -> None:
    more = [progress(1, 2.5), progress(2, "nan"), *AGAIN]
    assert (
        diagnose(seen(Phase.SUCCEEDED, ranks=[RankSeen(0, exit_code=0)], exit_code=0, more=more)).verdict.code == "none"
    )


def test_running_run_lists_what_could_not_be_observed() -> None:
    ranks = [RankSeen(0, last_output_at=900.0), RankSeen(1)]
    found = diagnose(seen(Phase.TRAINING, ranks=ranks, more=[("phase", {"phase": "training"})]))
    said = "\n".join(found.not_seen)
    assert found.verdict.code == "none"
    for words in ("the output of rank 1", "no stacks were taken", "memory, disks and limits"):
        assert words in said
    cut = replace(seen(Phase.TRAINING, ranks=ranks), not_seen=("the cluster: no route to host",))
    assert "no route to host" in "\n".join(diagnose(cut).not_seen)


def test_run_with_missing_log_lines_has_a_problem() -> None:
    lacks = ("warning", {"message": "m", "missing": {"0": 98_000, "1": 1}})
    succeeded = [RankSeen(rank, exit_code=0) for rank in range(2)]
    found = diagnose(seen(Phase.SUCCEEDED, ranks=succeeded, exit_code=0, more=[lacks]))
    assert found.verdict.code == "log-incomplete"
    [said] = found.not_seen
    assert said == "98,001 lines of the output of ranks 0, 1: the log had lost them when it was read"


def test_ranks_without_a_stack_are_named() -> None:
    ranks = [RankSeen(number, last_output_at=40.0) for number in range(3)]
    more = [("phase", {"phase": "training"}), hang(IN_ALL_REDUCE, "")]
    said = "\n".join(diagnose(seen(Phase.TRAINING, ranks=ranks, more=more)).not_seen)
    assert "where rank 1 was: no stack could be taken" in said
    assert "where rank 2 was: their nodes have not answered" in said


def test_ended_run_reports_nothing_unobserved() -> None:
    assert failed(TRACE + "ValueError: x\n").not_seen == ()


@pytest.mark.parametrize(
    ("tail", "code", "how", "verdict", "said"),
    [
        (
            "no room\n",
            7,
            "exit code 7",
            "setup-failed",
            "the setup script of the job ended with exit code 7; its last line: no room",
        ),
        ("", 7, "exit code 7", "setup-failed", "the setup script of the job ended with exit code 7, and no output"),
        ("", 143, "signal 15", "setup-failed", "the setup script of the job ended with signal 15, and no output"),
        ("reads\n", 137, "signal 9", "killed", f"the setup script was killed (SIGKILL), {UNCOUNTED}"),
        ("Killed\n", 137, "exit code 137", "killed", f"the setup script was killed (SIGKILL), {UNCOUNTED}"),
        ("", 139, "signal 11", "segfault", "the setup script crashed in native code: segmentation fault"),
        ("", 134, "signal 6", "native-abort", "the setup script was aborted by native code"),
        (TRACE + "ValueError: x\n", 1, "exit code 1", "exception", "the setup script raised ValueError: x"),
    ],
)
def test_a_setup_script_that_failed_is_not_called_the_training_script(
    tail: str, code: int, how: str, verdict: str, said: str
) -> None:
    failure = RankFailure(0, code, 103.0, f"{tail}\nsetup failed with {how}".lstrip())
    ranks = [RankSeen(number, exit_code=code, ended_at=103.0, tail=tail or failure.tail) for number in (0, 1)]
    cause = first_cause([failure])
    assert cause is not None
    case = seen(ranks=ranks, cause=cause.to_json())
    found = diagnose(replace(case, plan=replace(NO_PLAN, nodes=NO_NODES.replace(setup="./prepare.sh")))).verdict
    assert (found.code, found.summary) == (verdict, said)
    assert "setup script" not in diagnose(case).verdict.summary


def test_a_time_limit_that_comes_during_setup_is_told_with_what_the_script_wrote() -> None:
    ranks = [RankSeen(0, tail="Resolving packages\n")]
    more = [("node", {"node": 0, "pid": 7, "start_ticks": 0})]
    case = seen(ranks=ranks, cause={"summary": "the timeout of 3 s was reached"}, exit_code=124, more=more)
    with_setup, without = (
        diagnose(replace(case, plan=replace(NO_PLAN, nodes=NO_NODES.replace(setup=setup)))).verdict
        for setup in ("uv sync", "")
    )
    assert (with_setup.code, "while the setup script of the job ran" in with_setup.summary) == ("never-started", True)
    assert (with_setup.evidence[-1], "warm" in str(with_setup)) == ("Resolving packages", False)
    assert "before any rank was started" in without.summary


def test_a_pod_that_could_not_fetch_the_code_was_not_killed() -> None:
    cause = {"summary": "exit code 1", "node_lost": 0, "rank": 0, "exit_code": 1}
    why = "the code could not be fetched: no credentials for AWS were found"
    lost = ("lost-node", {"node": 0, "why": why})
    found = diagnose(seen(ranks=[RankSeen(0, exit_code=-9, tail="")], cause=cause, more=[lost])).verdict
    assert (found.code, found.evidence[0]) == ("code-not-fetched", why)


def test_a_node_that_the_supervisor_has_cut_off_was_not_killed_from_outside() -> None:
    cause = {"summary": "node 1 cannot be reached by the others", "node_lost": 1, "rank": 1, "exit_code": -9}
    ranks = [RankSeen(0, exit_code=-15, ended_by_us=True), RankSeen(1, exit_code=-9, tail="", node=1)]
    found = diagnose(seen(ranks=ranks, cause=cause)).verdict
    assert found.code == "node-unreachable"
    assert found.evidence[1] == "the supervisor then killed its worker, with rank 1"


@pytest.mark.parametrize(
    ("words", "runs_here", "code"),
    [
        ("python: error while loading shared libraries: libpython3.12.so.1.0", True, "interpreter-broken"),
        (
            "Traceback (most recent call last):\nImportError: cannot import name 'cache' from 'functools'",
            False,
            "interpreter-broken",
        ),
        ("Traceback (most recent call last):\nKeyError: 1", True, "worker-broke"),
        ("waiting for the name digits-0, 5 s so far", False, "node-killed"),
        ("", True, "node-killed"),
    ],
)
def test_a_worker_whose_interpreter_does_not_work_was_not_killed(words: str, runs_here: bool, code: str) -> None:
    cause = {"summary": "node 0 is gone", "node_lost": 0, "rank": 0, "exit_code": 1, "victims": []}
    case = seen(ranks=[RankSeen(0, exit_code=-9, tail="")], cause=cause)
    steps = (FolderStep("make /out", "/out", "/checkpoints"),) if runs_here else ()
    case = replace(case, plan=replace(NO_PLAN, steps=steps), nodes=[NodeSeen(0, words)])
    assert diagnose(case).verdict.code == code
    begun = seen(ranks=[RankSeen(0, exit_code=-9, tail="")], cause=cause, more=[("node", {"node": 0})])
    begun = replace(begun, plan=replace(NO_PLAN, steps=steps), nodes=[NodeSeen(0, words)])
    assert diagnose(begun).verdict.code in ("node-killed", "worker-broke")


def test_a_run_whose_logs_are_gone_is_explained_by_its_recorded_cause() -> None:
    """Both the rank's log and its node's report are missing."""
    host = {"oom_kills_of_group": 1, "memory_limit_bytes": 1 << 30}
    killed = {"rank": 0, "summary": "killed", "exit_code": 137, "failure": "signal", "code": -9, "host": host}
    assert diagnose(seen(cause=killed)).verdict.code == "oom-killed"
    trace = f"{TRACE}ModuleNotFoundError: No module named 'timm'"
    raised = {"rank": 0, "summary": "x", "exit_code": 1, "failure": "exception", "code": 1, "traceback": trace}
    assert diagnose(seen(cause=raised)).verdict.code == "module-missing"
