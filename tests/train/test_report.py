from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import windlass.train
from windlass.train.report import MAX_LINE_BYTES, Reporter, as_line, as_text
from windlass.worker.progress import Recogniser

PACKAGE = Path(windlass.train.__file__).parents[1]


class Loss:
    """Loss on a GPU: converting it waits for the device, so conversions are counted."""

    shape = ()
    device = "gpu:0"

    def __init__(self, value: float = 0.5) -> None:
        self.value = value
        self.num_waits = 0

    def item(self) -> float:
        self.num_waits += 1
        return self.value


class Bench:
    """Reporter with a clock set by the test, and a pipe as stdout."""

    def __init__(self, **environ: str) -> None:
        self.now = 100.0
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        self.reporter = Reporter(lambda: self.now, environ, self.write_fd)
        self.series: list[dict[str, Any]] = []
        """Series of all lines."""

    def report(self, step: Any = None, **arguments: Any) -> list[dict[str, Any]]:
        """Reports, and returns the lines that were written, without series."""
        self.reporter.report(step, **arguments)
        return self.read()

    def read(self) -> list[dict[str, Any]]:
        """Returns the lines that were written, without series and without those that have nothing else."""
        try:
            data = os.read(self.read_fd, 1 << 20)
        except BlockingIOError:
            return []
        lines = data.splitlines(keepends=True)
        assert max(map(len, lines)) <= MAX_LINE_BYTES
        found = [json.loads(line.removeprefix(b"::windlass ")) for line in lines]
        self.series += [line.pop("series") for line in found if "series" in line]
        return [line for line in found if line]

    def points(self, name: str) -> list[tuple[Any, Any]]:
        """Returns step and value of each point of a metric that was written."""
        having = [one for one in self.series if name in one["values"]]
        return [point for one in having for point in zip(one["steps"], one["values"][name], strict=True)]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(WINDLASS_RUN_ID="digits-1")
    yield made
    os.close(made.read_fd)
    os.close(made.write_fd)


def run_script(code: str, *, path: Path = PACKAGE.parent, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs `code` with only the standard library and the package in `path` importable."""
    code = f"import sys; sys.path.insert(0, {str(path)!r})\n{code}"
    environ = {"PATH": os.environ["PATH"], **environ}
    return subprocess.run([sys.executable, "-S", "-I", "-c", code], capture_output=True, text=True, env=environ)


# ---------------------------------------------------------------- what is written, and when


def test_step_counted_by_a_checkpoint_replaces_a_batch_number(bench: Bench) -> None:
    bench.reporter.count(60)
    counts = bench.report(14, total=16, epoch=3, loss=0.5)
    bench.reporter.count(61)
    assert counts == [{"checkpoint": {"action": "counts"}}, {"step": 60, "epoch": 3, "loss": 0.5}]
    for step, total, known in (
        (61, 160, {"step": 61, "total": 160}),
        (62, 160, {"step": 62, "total": 160}),
        (15, 16, {"step": 61}),
        (None, None, {}),
    ):
        bench.now += 1.0
        [line] = bench.report(step, total=total, loss=0.25)
        assert {name: line[name] for name in ("step", "total") if name in line} == known


def test_first_report_is_written_with_all_arguments(bench: Bench) -> None:
    given = {"total": 500, "epoch": 0, "loss": 0.5, "phase": "training", "message": "off"}
    assert bench.report(1, lr=0.1, **given) == [{"step": 1, **given, "metrics": {"lr": 0.1}}]


def test_at_most_ten_lines_per_second_are_written(bench: Bench) -> None:
    num_lines = 0
    for step in range(1000):
        num_lines += len(bench.report(step))
        bench.now += 0.001
    assert 9 <= num_lines <= 11


def test_a_loss_is_converted_only_for_the_lines_that_are_written(bench: Bench) -> None:
    losses = [Loss() for _ in range(1000)]
    for step, loss in enumerate(losses):
        num_waits = sum(each.num_waits for each in losses)
        lines = bench.report(step, loss=loss)
        assert lines or sum(each.num_waits for each in losses) == num_waits
        bench.now += 0.001
    bench.reporter.report_last()
    bench.read()
    assert [loss.num_waits for loss in losses] == [1] * 1000


def test_last_finite_loss_is_written_before_the_first_nan(bench: Bench) -> None:
    bench.report(1, loss=2.5)
    assert [bench.report(step, loss=step / 100) for step in range(2, 61)] == [[]] * 59
    assert bench.report(61, loss=float("nan")) == [{"step": 60, "loss": 0.6}, {"step": 61, "loss": "nan"}]
    assert bench.report(62, loss=float("nan")) == []
    for step in range(63, 1063, 2):
        bench.report(step, loss=0.5)
        bench.report(step + 1, loss=float("inf"))
    assert bench.report(2000, loss=0.5) == bench.report(2001, loss=float("inf")) == []


def test_final_step_is_always_written(bench: Bench) -> None:
    bench.report(498, total=500)
    assert bench.report(499, total=500) == []
    assert [line["step"] for line in bench.report(500, total=500)] == [500]


def test_line_without_a_step_has_the_step_counted_by_a_checkpoint(bench: Bench) -> None:
    bench.report(loss=0.9)
    for step in range(1, 4):
        assert bench.report(step) == []
    bench.now += 1
    assert bench.report(loss=0.5) == [{"step": 3, "loss": 0.5}]
    bench.now += 1
    assert bench.report(loss=0.4) == [{"loss": 0.4}]


def test_new_phase_is_written_at_once_and_repeated_phase_is_not(bench: Bench) -> None:
    bench.report(1, phase="training")
    assert bench.report(2, phase="training") == []
    assert bench.report(3, phase="validating") == [{"step": 3, "phase": "validating"}]
    assert bench.report(4) == []


def test_a_message_waits_for_the_next_line(bench: Bench) -> None:
    bench.report(1)
    assert bench.report(2, message="learning rate halved") == []
    bench.now += 1
    (line,) = bench.report(3)
    assert line["message"] == "learning rate halved"
    bench.now += 1
    assert "message" not in bench.report(4)[0]


def test_samples_are_added_up_between_lines(bench: Bench) -> None:
    bench.report(0, samples=64)
    for step in range(1, 10):
        bench.now += 0.01
        assert bench.report(step, samples=64) == []
    bench.now += 0.91
    (line,) = bench.report(10, samples=64)
    assert line == {"step": 10, "rate": 10.0, "samples_per_second": 640.0}


def test_speed_over_a_very_short_time_is_not_reported(bench: Bench) -> None:
    bench.report(1, samples=64)
    bench.now += 0.001
    assert bench.report(2, samples=64, phase="validating") == [{"step": 2, "phase": "validating"}]
    bench.now += 0.999
    assert bench.report(3, samples=64)[0]["samples_per_second"] == 128.0


def test_steps_that_restart_have_no_rate(bench: Bench) -> None:
    bench.report(90)
    bench.now += 1
    assert bench.report(1) == [{"step": 1}]


def test_empty_report_writes_nothing(bench: Bench) -> None:
    assert bench.report() == []


# ---------------------------------------------------------------- values of all calls


def test_every_value_is_written_with_its_step(bench: Bench) -> None:
    for step in range(1, 201):
        bench.report(step, total=200, loss=step / 2, **({"acc": step} if step % 50 == 0 else {}))
        bench.now += 0.001
    assert bench.points("loss") == [(step, step / 2) for step in range(1, 201)]
    assert bench.points("acc") == [(step, step) for step in (50, 100, 150, 200)]


def test_values_of_a_very_fast_script_are_thinned_to_their_extremes(bench: Bench) -> None:
    odd = {1000: 9.5, 2000: -9.5, 500: float("nan")}
    for step in range(3000):
        bench.report(step, acc=odd.get(step, 0.5))
    assert bench.points("acc") == [(0, 0.5)]
    bench.reporter.report_last()
    bench.read()
    values = [value for _, value in bench.points("acc")]
    assert {9.5, -9.5, "nan"} <= set(values)
    assert len(values) <= 250


def test_buffer_is_written_before_it_is_too_long(bench: Bench) -> None:
    for step in range(10_000):
        bench.report(step, loss=0.5)
    assert bench.points("loss")[-1][0] >= 8_000


def test_many_long_names_are_written_in_several_lines(bench: Bench) -> None:
    bench.report(1, **{f"{'n' * 70}{number}": 1.5 for number in range(64)})
    assert [len(one["values"]) < 64 for one in bench.series] == [True] * len(bench.series)
    assert sum(len(one["values"]) for one in bench.series) == 64


@pytest.mark.parametrize(("world_size", "num_points"), [("16", 2), ("17", 0)])
def test_rank_1_writes_its_values_in_jobs_of_few_ranks(world_size: str, num_points: int) -> None:
    bench = Bench(WINDLASS_RUN_ID="digits-1", RANK="1", WORLD_SIZE=world_size)
    assert bench.report(1, loss=1) == [{"step": 1, "loss": 1}]
    bench.report(2, loss=1)
    bench.reporter.report_last()
    bench.read()
    assert len(bench.points("loss")) == num_points


def test_values_have_the_steps_that_a_checkpoint_counts(bench: Bench) -> None:
    bench.reporter.count(60)
    bench.report(3, loss=1)
    bench.report(loss=2)
    bench.reporter.report_last()
    bench.read()
    assert bench.points("loss") == [(60, 1), (60, 2)]


def test_tensors_on_a_gpu_are_copied_at_the_call_and_fetched_together(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[int] = []

    class Device:
        type = "cuda"

    class Tensor:
        shape, dtype, device, is_cpu = (), "float32", Device(), False

        def __init__(self, value: float) -> None:
            self.value = value

        def detach(self) -> Tensor:
            return self

        def clone(self) -> Tensor:
            return Tensor(self.value)

        def reshape(self, shape: tuple[()]) -> Tensor:
            return self

        def item(self) -> float:
            waits.append(1)
            return self.value

    class Stack:
        def __init__(self, tensors: list[Tensor]) -> None:
            self.tensors = tensors

        def tolist(self) -> list[float]:
            waits.append(len(self.tensors))
            return [tensor.value for tensor in self.tensors]

    class Hung:
        def query(self) -> bool:
            return False

    fake = ModuleType("torch")
    cuda = SimpleNamespace(current_stream=lambda device: Hung())
    for name, value in {"Tensor": Tensor, "stack": Stack, "cuda": cuda}.items():
        setattr(fake, name, value)
    monkeypatch.setitem(sys.modules, "torch", fake)
    bench.report(0, loss=Tensor(0.0))
    waits.clear()
    running = Tensor(1.0)
    for step in range(1, 50):
        running.value = float(step)
        assert bench.report(step, loss=running, norm=Tensor(2.0)) == []
    assert waits == []
    bench.now += 1
    running.value = 50.0
    bench.report(50, loss=running)
    assert waits == [99]
    assert bench.points("loss") == [(step, float(step)) for step in range(51)]
    bench.report(51, loss=running)
    bench.reporter.report_last()  # the GPU waits for other ranks
    bench.read()
    assert waits == [99]
    assert len(bench.points("loss")) == 51


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (1, 1),
        (0.125, 0.125),
        (np.float32(0.1), 0.1),
        (np.float64(0.1), 0.1),
        (np.array([0.5]), 0.5),
        (np.int64(3), 3),
        (torch.tensor(0.1), 0.1),
        (torch.tensor([0.5], dtype=torch.bfloat16, requires_grad=True), 0.5),
        (float("nan"), "nan"),
        (torch.tensor(float("inf")), "inf"),
        (float("-inf"), "-inf"),
    ],
    ids=repr,
)
def test_a_loss_of_any_kind_becomes_a_number(bench: Bench, given: Any, written: Any) -> None:
    assert bench.report(1, loss=given) == [{"step": 1, "loss": written}]


def test_a_step_may_be_an_integer_of_numpy_or_torch(bench: Bench) -> None:
    assert bench.report(np.int64(3), total=torch.tensor(5)) == [{"step": 3, "total": 5}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step": "3"}, r"report\(step=...\) takes an integer, but was given str '3'"),
        ({"step": 3.0}, "report.step=.... takes an integer, but was given float 3.0"),
        ({"step": True}, "takes an integer, but was given bool True"),
        ({"step": torch.tensor(3.0)}, "takes an integer"),
        ({"total": [1]}, "report.total=.... takes an integer"),
        ({"loss": "low"}, "report.loss=.... takes a number, or a tensor or array of one element"),
        ({"loss": torch.zeros(2, 3)}, r"was given Tensor of shape \(2, 3\)"),
        ({"epoch": "x" * 1000}, r"was given str 'x{56}\.\.\.$"),
        ({"samples": 1.5}, "report.samples=.... takes an integer such as len.batch."),
        ({"samples": torch.tensor(3)}, "report.samples=.... takes an integer"),
        ({"phase": 3}, "report.phase=.... takes a string"),
        ({"message": b"x"}, "report.message=.... takes a string"),
        ({"lr": {}}, "report.lr=.... takes a number"),
    ],
)
def test_argument_of_wrong_type_is_refused_in_every_call(bench: Bench, arguments: dict[str, Any], message: str) -> None:
    bench.report(1)
    with pytest.raises(TypeError, match=message):
        bench.report(**arguments)


def test_unconvertible_loss_leaves_the_other_fields(bench: Bench) -> None:
    class Broken(Loss):
        def item(self) -> float:
            raise RuntimeError("CUDA error: device-side assert triggered")

    assert bench.report(1, loss=Broken()) == [{"step": 1}]


# ---------------------------------------------------------------- the line


def test_a_line_always_fits_into_one_write() -> None:
    fields = {"step": 1, "phase": "ü" * 100, "message": "\U0001f600" * 1000}
    metrics = {f"metric_{number}": 0.123456 for number in range(1000)}
    for message in (fields, {"step": 1}, {"message": "\x00" * 680}):
        line = as_line(message, metrics)
        assert len(line) <= MAX_LINE_BYTES
        assert line.count(b"\n") == 1
        assert line.endswith(b"}\n")
    assert len(as_line({"step": 1}, metrics)) > MAX_LINE_BYTES - 40
    assert len(json.loads(as_line({"step": 1}, metrics)[11:])["metrics"]) > 100


def test_recogniser_reads_written_lines() -> None:
    fields = {"step": 1, "total": 2, "epoch": 0.5, "loss": "nan", "rate": 1.0, "samples_per_second": 2.0, "phase": "x"}
    assert Recogniser().feed(as_line(fields, {"lr": 0.1})) == {**fields, "metrics": {"lr": 0.1}}


def test_recogniser_reads_lines_for_the_user() -> None:
    fields = {"step": 40, "total": 500, "epoch": 3, "loss": 0.1234, "samples_per_second": 1234.4}
    assert as_text(fields, {}) == "step 40/500  epoch 3  loss 0.1234  1,234 samples/s"
    found = Recogniser().feed(as_text(fields, {}).encode() + b"\n")
    assert found == {**fields, "samples_per_second": 1234.0}


def test_line_for_the_user_has_all_fields() -> None:
    fields = {"phase": "training", "step": 4, "loss": "nan", "rate": 2.5, "message": "hm"}
    assert as_text(fields, {"lr": 0.001}) == "training  step 4  loss nan  lr 0.001  2.5 steps/s  hm"


# ---------------------------------------------------------------- a process

REPORT_ONCE = "from windlass.train import report\nreport(1, total=2, loss=0.5)\n"


def test_only_rank_0_prints_without_windlass() -> None:
    assert run_script(REPORT_ONCE).stdout == "step 1/2  loss 0.5\n"
    assert run_script(REPORT_ONCE, RANK="0").stdout == "step 1/2  loss 0.5\n"
    assert run_script(REPORT_ONCE, RANK="1").stdout == ""
    assert run_script(REPORT_ONCE, OMPI_COMM_WORLD_RANK="3").stdout == ""


def test_under_windlass_every_rank_writes() -> None:
    done = run_script(REPORT_ONCE, RANK="1", WINDLASS_RUN_ID="digits-1")
    assert done.stdout.startswith('::windlass {"step": 1, "total": 2, "loss": 0.5, "series": {')


def test_buffered_output_is_written_before_the_line() -> None:
    code = "print('before')\n" + REPORT_ONCE + "print('after')"
    lines = run_script(code, WINDLASS_RUN_ID="digits-1").stdout.splitlines()
    assert [line[:6] for line in lines] == ["before", "::wind", "after"]


def test_lines_for_windlass_bypass_a_redirected_sys_stdout() -> None:
    code = "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()):\n    "
    code += "from windlass.train import report; report(1)"
    assert run_script(code, WINDLASS_RUN_ID="digits-1").stdout == '::windlass {"step": 1}\n'


@pytest.mark.parametrize("run_id", ["", "digits-1"])
@pytest.mark.parametrize(
    "closing",
    ["sys.stdout.close()", "os.close(1)", "sys.stdout = None", "sys.stdout = sys.__stdout__ = None", "del sys.stdout"],
)
def test_closed_stdout_raises_nothing(closing: str, run_id: str, tmp_path: Path) -> None:
    target = tmp_path / "checkpoint"
    code = (
        "import os\nfrom windlass.train import report\n"
        f"report(0)\n{closing}\nfile = open({str(target)!r}, 'wb')\nreport(1, phase='x')\nreport(2, phase='y')\n"
        "print('alive', file=sys.stderr, flush=True)\nos._exit(0)"
    )
    done = run_script(code, WINDLASS_RUN_ID=run_id)
    assert (done.returncode, done.stderr) == (0, "alive\n")
    if run_id:
        assert target.read_bytes() == b""  # the file reuses the descriptor number of stdout


def test_broken_pipe_raises_nothing() -> None:
    code = "import os\nr, w = os.pipe(); os.dup2(w, 1); os.close(r)\n" + REPORT_ONCE + "os._exit(7)"
    assert run_script(code, WINDLASS_RUN_ID="digits-1").returncode == 7


def test_a_forked_child_reports_even_when_its_parent_was_reporting() -> None:
    code = (
        "import os\nfrom windlass.train import report\nimport windlass.train\n"
        "module = sys.modules['windlass.train.report']\nmodule._reporter._lock.acquire()\n"
        "pid = os.fork()\nif pid == 0:\n    report(1); os._exit(0)\nos.waitpid(pid, 0)"
    )
    assert run_script(code, WINDLASS_RUN_ID="digits-1").stdout == '::windlass {"step": 1}\n'


def test_report_works_if_only_report_and_worker_are_copied(tmp_path: Path) -> None:
    home = tmp_path / "windlass"
    home.mkdir()
    shutil.copy(PACKAGE / "__init__.py", home)
    for name in ("worker", "train"):
        shutil.copytree(PACKAGE / name, home / name)
    code = (
        "import windlass.train\nwindlass.train.report(1)\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('windlass', 'torch', 'numpy')))"
    )
    done = run_script(code, path=tmp_path, WINDLASS_RUN_ID="digits-1")
    assert done.stdout.splitlines() == [
        '::windlass {"step": 1}',
        "['windlass', 'windlass.train', 'windlass.train.report', 'windlass.train.series', 'windlass.train.stream']",
    ], done.stderr


LEAVES = """
import os, sys, windlass.train
for step in range(1, 8):
    windlass.train.report(step=step)
if sys.argv[1] == "raise":
    raise ValueError("bad batch")
if sys.argv[1] == "fork" and os.fork() == 0:
    sys.exit()  # a child that has reported nothing
if sys.argv[1] == "fork":
    os.wait()
"""


@pytest.mark.parametrize("how", ["end", "raise", "fork"])
def test_last_step_is_reported_when_the_script_ends(how: str) -> None:
    environ = {**os.environ, "WINDLASS_RUN_ID": "run-1"}
    done = subprocess.run([sys.executable, "-c", LEAVES, how], env=environ, capture_output=True, text=True, check=False)
    steps = [json.loads(line.removeprefix("::windlass "))["step"] for line in done.stdout.splitlines()]
    assert (steps[0], steps[-1]) == (1, 7)
    assert steps.count(7) == 1
