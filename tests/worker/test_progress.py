from __future__ import annotations

import ast
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from windlass.worker import loss_tracking, progress, training_start, trainlogs
from windlass.worker.log_points import LINES_PER_SECOND
from windlass.worker.progress import Recogniser
from windlass.worker.trainlogs import recognise

CASES = YAML(typ="safe").load((Path(__file__).parents[1] / "cases" / "progress.yaml").read_text("utf-8"))
KEYS = {
    "step",
    "total",
    "epoch",
    "loss",
    "rate",
    "samples_per_second",
    "phase",
    "percent",
    "message",
    "metrics",
}


def structured(**fields: Any) -> bytes:
    return b"::windlass " + json.dumps(fields).encode() + b"\n"


def expected(case: dict[str, Any]) -> dict[str, Any] | None:
    gives: dict[str, Any] | None = case.get("gives")
    return gives


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["line"][:60])
def test_line_has_the_progress_listed_in_the_table(case: dict[str, Any]) -> None:
    assert recognise(case["line"]) == expected(case)
    assert Recogniser().feed(case["line"].encode() + b"\n") == expected(case)


def test_table_has_enough_lines_of_both_kinds() -> None:
    nothing = [case for case in CASES if "gives" not in case]
    assert len(CASES) - len(nothing) >= 40
    assert len(nothing) >= 20


def checkpoint(**fields: Any) -> bytes:
    return structured(checkpoint=fields)


def test_checkpoint_line_is_reported_once_however_it_is_split() -> None:
    data = b"".join(
        checkpoint(action="saved", step=step, name=f"step-{step}", bytes=5, blocked_at=1.5, blocked_seconds=0.25)
        for step in range(40)
    )
    wanted = [
        {
            "action": "saved",
            "step": step,
            "bytes": 5,
            "blocked_at": 1.5,
            "blocked_seconds": 0.25,
            "name": f"step-{step}",
        }
        for step in range(40)
    ]
    for size in (7, 64, 1000, len(data)):
        recogniser = Recogniser()
        told = [recogniser.feed(data[at : at + size]) for at in range(0, len(data), size)]
        assert recogniser.checkpoints == wanted
        assert told == [None] * len(told), "the step of a checkpoint is no progress"


def test_progress_between_checkpoint_lines_is_found() -> None:
    recogniser = Recogniser()
    data = checkpoint(action="restored", step=90) + structured(step=100) + checkpoint(action="saved", step=100)
    assert recogniser.feed(data) == {"step": 100}
    assert [event["action"] for event in recogniser.checkpoints] == ["restored", "saved"]


@pytest.mark.parametrize(
    "fields", [{}, {"action": "eaten"}, {"action": 3}, {"action": ["saved"]}, {"step": 4}], ids=str
)
def test_invalid_checkpoint_line_reports_nothing(fields: dict[str, Any]) -> None:
    recogniser = Recogniser()
    recogniser.feed(checkpoint(**fields) + b'::windlass {"checkpoint": {"action": \n')
    assert recogniser.checkpoints == []


def test_invalid_fields_of_a_checkpoint_are_left_out() -> None:
    recogniser = Recogniser()
    recogniser.feed(checkpoint(action="failed", step=-1, bytes="x", seconds=[], name=7, reason="disk full", other=1))
    assert recogniser.checkpoints == [{"action": "failed", "reason": "disk full"}]


def test_split_line_gives_the_same_progress_as_the_whole_line() -> None:
    data = b"epoch 3 step 40 loss 0.5\n"
    for size in range(1, len(data) + 1):
        recogniser = Recogniser()
        found = [recogniser.feed(data[at : at + size]) for at in range(0, len(data), size)]
        assert found[-1] == {"epoch": 3, "step": 40, "loss": 0.5}
        assert not any(found[:-1])


def test_newest_line_of_a_chunk_wins() -> None:
    lines = b"".join(b"step %d loss 0.5\n" % step for step in range(100))
    assert Recogniser().feed(lines) == {"step": 99, "loss": 0.5}


def test_incomplete_bar_is_read_once() -> None:
    recogniser = Recogniser()
    first = recogniser.feed("\r 10%|█         | 1/10 [00:30<04:30, 30.0s/it]".encode())
    assert first is not None
    assert (first["step"], first["total"]) == (1, 10)
    assert recogniser.feed(b"") is None or recogniser.feed(b"") == first
    second = recogniser.feed("\r 20%|██        | 2/10 [01:00<04:00, 30.0s/it]".encode())
    assert second is not None
    assert second["step"] == 2
    assert recogniser.feed(b"\nDone.\n") is None


def test_bar_and_dict_of_the_trainer_in_one_chunk_are_combined() -> None:
    data = " 45%|████▌     | 450/1000 [00:12<00:15, 36.1it/s]\n{'loss': 0.5, 'learning_rate': 0.1, 'epoch': 0.45}\n"
    found = Recogniser().feed(data.encode())
    assert found == {
        "step": 450,
        "total": 1000,
        "rate": 36.1,
        "loss": 0.5,
        "epoch": 0.45,
        "metrics": {"learning_rate": 0.1},
    }


def test_step_is_never_shown_with_the_total_of_another_line() -> None:
    data = " 45%|████▌     | 450/1000 [00:12<00:15, 36.1it/s]\nstep 3 loss 0.5\n"
    assert Recogniser().feed(data.encode()) == {"step": 3, "loss": 0.5}


def test_evaluation_ends_with_the_next_step() -> None:
    recogniser = Recogniser()
    assert recogniser.feed(b"Validation:  50%|#####     | 1/2 [00:01<00:01, 1.0it/s]\n") == {"phase": "evaluating"}
    assert recogniser.feed(b"step 3 loss 0.5\n") == {"step": 3, "loss": 0.5, "phase": "training"}
    assert recogniser.feed(b"step 4 loss 0.5\n") == {"step": 4, "loss": 0.5}


# ---------------------------------------------------------------- structured lines


def test_structured_line_gives_its_fields() -> None:
    fields: dict[str, Any] = {
        "step": 40,
        "total": 500,
        "epoch": 1.5,
        "loss": 0.5,
        "rate": 2.0,
        "samples_per_second": 64.0,
        "phase": "checkpointing",
        "percent": 8,
        "message": "päuse",
        "metrics": {"lr": 0.1, "f1": "nan"},
    }
    assert Recogniser().feed(structured(**fields)) == fields
    assert set(fields) == KEYS


def test_other_lines_are_ignored_after_a_structured_line() -> None:
    recogniser = Recogniser(pattern=r"(?P<step>\d+)")
    assert recogniser.feed(structured(step=1)) == {"step": 1}
    assert recogniser.feed(b"step 9 loss 0.5\n") is None
    assert recogniser.feed(structured(step=2) + b"step 9 loss 0.5\n") == {"step": 2}


def test_loss_missing_in_structured_lines_is_read_from_the_output() -> None:
    recogniser = Recogniser()
    assert recogniser.feed(b"epoch 0 step 8 loss 34.3\n" + structured(step=8)) == {"step": 8, "epoch": 0, "loss": 34.3}
    assert recogniser.feed(structured(step=20) + b"epoch 1 step 4 loss 0.5\n") == {"step": 20, "epoch": 1, "loss": 0.5}
    assert recogniser.feed(b"epoch 1 step 5 loss nan\n") == {"epoch": 1, "loss": "nan"}
    assert recogniser.losses.changes == [{"loss": "nan", "step": 20, "last": {"loss": 0.5, "step": 20}}]
    own = Recogniser(pattern=r"it (?P<step>\d+) of (?P<total>\d+) err=(?P<loss>\S+)")
    assert own.feed(structured(step=60)) == {"step": 60}
    assert own.feed(b"it 3 of 16 err=0.25\n") == {"loss": 0.25}


def test_outdated_loss_is_not_shown_with_later_steps() -> None:
    recogniser = Recogniser()
    assert recogniser.feed(checkpoint(action="counts") + b"epoch 0 step 1 loss 34.3\n") == {"epoch": 0, "loss": 34.3}
    assert recogniser.feed(structured(step=6001)) == {"step": 6001}
    assert recogniser.feed(structured(step=6030)) == {"step": 6030}
    assert recogniser.feed(structured(step=6032)) == {"step": 6032, "loss": None, "epoch": None}
    assert recogniser.feed(structured(step=6050)) == {"step": 6050}
    for step in range(6100, 6500, 100):  # a loss that is printed every 100 steps
        assert recogniser.feed(structured(step=step - 50)) == {"step": step - 50}
        assert recogniser.feed(structured(step=step) + b"epoch 1 loss 0.5\n") == {"step": step, "epoch": 1, "loss": 0.5}
    assert recogniser.feed(structured(step=6700)) == {"step": 6700}


def test_loss_printed_after_a_step_does_not_belong_to_that_step() -> None:
    recogniser = Recogniser()
    recogniser.feed(checkpoint(action="counts") + structured(step=1))
    for step in range(8, 97, 8):
        recogniser.feed(f"epoch 0 step {step} loss 0.5\n".encode())
    assert recogniser.feed(structured(step=96)) == {"step": 96}
    assert recogniser.feed(structured(step=192)) == {"step": 192, "loss": None, "epoch": None}


def test_loss_of_a_structured_line_is_not_replaced_by_printed_one() -> None:
    recogniser = Recogniser()
    assert recogniser.feed(structured(step=1, loss=0.5)) == {"step": 1, "loss": 0.5}
    assert recogniser.feed(b"validation loss 0.9\nepoch 1 step 4 loss 0.7\n") is None


def test_batch_number_is_not_a_step_if_a_checkpoint_counts_steps() -> None:
    recogniser = Recogniser()
    data = checkpoint(action="counts") + b"epoch 3 step 14 loss 0.5\n"
    assert recogniser.feed(data) == {"epoch": 3, "loss": 0.5}
    recogniser.feed(b"epoch 3 step 15 loss 0.5\n" + structured(step=61) + structured(step=62))
    assert recogniser.beginning.take() == {"step": 61, "every": 1}
    assert recogniser.checkpoints == []


def test_structured_line_is_found_among_many_other_lines() -> None:
    flood = b"step 1 loss 0.5\n" * 20_000
    assert Recogniser().feed(structured(step=7, loss=0.25) + flood) == {"step": 7, "loss": 0.25}


def test_structured_lines_of_one_chunk_are_merged_newest_first() -> None:
    data = structured(step=1, loss=0.5) + structured(step=2) + structured(phase="validating")
    assert Recogniser().feed(data) == {"step": 2, "loss": 0.5, "phase": "validating"}


def test_structured_line_split_anywhere_is_found() -> None:
    line = structured(step=5)
    for data in (line, b"\r 45%|####  " + line, b"text\n" + line, line[:-1] + b"\r\n"):
        for at in range(len(data) + 1):
            recogniser = Recogniser()
            found = [recogniser.feed(data[:at]), recogniser.feed(data[at:])]
            assert {"step": 5} in found, (data, at)


def test_broken_structured_lines_are_skipped() -> None:
    for bad in (b"{", b"[]", b"[" * 50_000, b"1" * 5000, b"null", b'{"step": ' + b"9" * 5000 + b"}", b"\xff"):
        recogniser = Recogniser()
        assert recogniser.feed(structured(step=3) + b"::windlass " + bad + b"\n") == {"step": 3}


def test_fields_of_a_wrong_type_are_left_out() -> None:
    line = structured(step="x", total=-1, epoch=True, loss=[1], phase=3, metrics={"a": "b", "c": 1}, other=1)
    assert Recogniser().feed(line) == {"metrics": {"c": 1}}
    assert Recogniser().feed(structured(step=None)) is None


def test_nan_and_infinity_are_written_as_words() -> None:
    line = b'::windlass {"loss": NaN, "rate": Infinity, "metrics": {"a": -Infinity, "b": 1e999}}\n'
    assert Recogniser().feed(line) == {"loss": "nan", "rate": "inf", "metrics": {"a": "-inf", "b": "inf"}}


# ---------------------------------------------------------------- the job's own expression


def test_progress_pattern_of_the_job_precedes_known_formats() -> None:
    recogniser = Recogniser(pattern=r"\[(?P<epoch>\d+)\] n=(?P<step>[\d,]+) of (?P<total>\d+) L(?P<loss>\S+)")
    assert recogniser.feed(b"step 1 loss 0.5\n") == {"step": 1, "loss": 0.5}
    assert recogniser.feed(b"[2] n=1,024 of 4096 Lnan\n") == {"epoch": 2, "step": 1024, "total": 4096, "loss": "nan"}
    assert recogniser.feed(b"step 1 loss 0.5\n") is None


def test_samples_group_of_the_pattern_is_samples_per_second() -> None:
    recogniser = Recogniser(pattern=r"(?P<samples>[\d.]+) smp (?P<rate>[\d.]+)?")
    assert recogniser.feed(b"12.5 smp \n") == {"samples_per_second": 12.5}


def test_pattern_match_that_is_not_a_number_is_left_out() -> None:
    assert Recogniser(pattern=r"step (?P<step>\S+)").feed(b"step one\n") is None


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("(", "not a regular expression"), ("step", "no named group"), ("(?P<stepp>x)", "stepp; it may name step, total")],
)
def test_invalid_progress_pattern_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recogniser(pattern)


# ---------------------------------------------------------------- hostile input

# -- losses that are not finite ----------------------------------------------------------------------------------------

HF = "{{'loss': {loss}, 'grad_norm': 1.25, 'learning_rate': 5e-05, 'epoch': 0.5, 'step': {step}}}\n"
FORMS = {
    "structured": '::windlass {{"step": {step}, "loss": {loss}}}\n',
    "hand-written": "step {step} loss {loss}\n",
    "transformers": HF,
    "a bar": "\r 45%|####5     | {step}/1000 [00:12<00:15, 36.1it/s, loss={loss}]",
    "the job's own": "n={step} L{loss} \n",
}
CHANGE = {"loss": "nan", "step": 61, "last": {"loss": 0.5, "step": 60}}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("at_once", [True, False])
def test_last_finite_loss_is_found_in_a_chunk_of_many_lines(form: str, at_once: bool) -> None:
    recogniser = Recogniser(r"n=(?P<step>\d+) L(?P<loss>\S+) " if form == "the job's own" else None)
    lines = [FORMS[form].format(step=step, loss="0.5" if step == 60 else "2.5") for step in range(1, 61)]
    name = '"nan"' if form == "structured" else "nan"
    lines += [FORMS[form].format(step=step, loss=name) for step in range(61, 401)]
    lines += ["\r"] if form == "a bar" else []
    for piece in ["".join(lines)] if at_once else lines:
        recogniser.feed(piece.encode())
    assert recogniser.losses.changes == [CHANGE]


def test_repeated_nan_losses_are_reported_up_to_a_limit() -> None:
    recogniser = Recogniser()
    recogniser.feed(b"step 60 loss 0.5\nstep 61 loss nan\n")
    recogniser.feed(b"step 62 loss 0.25\n")
    recogniser.feed(b"step 63 loss inf\n")
    assert recogniser.losses.changes == [
        CHANGE,
        {"loss": "inf", "step": 63, "last": {"loss": 0.25, "step": 62}},
    ]
    for step in range(64, 400, 2):
        recogniser.feed(b"step %d loss 0.25\n" % step)
        recogniser.feed(b"step %d loss nan\n" % (step + 1))
    assert len(recogniser.losses.changes) == 32


_BITS = st.sampled_from(
    [
        b"::windlass ", b'{"step":', b"1e999", b"}", b"{'", b"loss", b"=", b": ", b"nan", b"epoch", b" ", b"[", b"]",
        b"/", b"%|", b"|", b"it/s", b"s/it", b"0", b"00:00", b",", b"\r", b"\n", b"step", b"9" * 40, b"\x1b[",
        b"Train Epoch:", "━".encode(), b"it [", b"\xff", b"(", b")", b"1/2 [", b"0.0s/it", b"ms/step",
        b"iteration", b"Epoch ",
    ]
)  # fmt: skip
_HOSTILE = st.lists(st.one_of(_BITS, st.binary(max_size=8)), max_size=60).map(b"".join)


@settings(deadline=None, max_examples=200)
@given(chunks=st.lists(_HOSTILE, max_size=4))
def test_no_input_raises_or_yields_invalid_json(chunks: list[bytes]) -> None:
    recogniser = Recogniser()
    for chunk in chunks:
        found = recogniser.feed(chunk)
        if found is not None:
            assert found
            assert set(found) <= KEYS
            json.dumps(found, allow_nan=False)
            for name in ("step", "total"):
                assert type(found.get(name, 0)) is int
            assert all(not isinstance(value, float) or math.isfinite(value) for value in found.values())


@pytest.mark.parametrize(
    "bit",
    [b"a", b" ", b"[", b"9", b"loss", b"loss ", b"epoch ", b"step ", b"step:", b"a:", b"1,000", b"%|", b"it [", b"it/s",
     b"{'a': ", b"=1 ", b"x=1,", "━".encode(), b"- ", b"1/", b"loss: step ", b"train epoch: 1 [", b"\x1b[0m"],
)  # fmt: skip
def test_repetitive_input_is_not_slow(bit: bytes) -> None:
    for head in (b"", b"epoch 1 ", b"{'", b"Epoch 1 ", b"1/2 [", b"45%|"):
        line = (head + bit * 4000)[:4000] + b" loss\n"
        begin = time.process_time()
        Recogniser().feed(line * 32)
        Recogniser().feed((head + bit * 4000)[:2040] + b"\n")
        assert time.process_time() - begin < 5.0, head


def test_endless_line_uses_bounded_memory() -> None:
    recogniser = Recogniser()
    begin = time.process_time()
    for _ in range(2000):
        assert recogniser.feed(b"x" * 10_000) is None
    assert time.process_time() - begin < 30
    assert sum(len(value) for value in vars(recogniser).values() if isinstance(value, bytes)) <= 64 << 10
    assert recogniser.feed(b" step 3 loss 0.5\n") is None
    assert recogniser.feed(b"step 4 loss 0.5\n") == {"step": 4, "loss": 0.5}


def test_much_output_is_read_faster_than_it_is_written() -> None:
    chunk = (b"epoch 3 step 40/500 loss 0.123 some more words on the line\n" * 1200)[: 64 << 10]
    recogniser = Recogniser()
    begin = time.process_time()
    for _ in range(320):
        recogniser.feed(chunk)
    assert 320 * len(chunk) / (time.process_time() - begin) > 10e6


@pytest.mark.parametrize("module", [progress, trainlogs, training_start, loss_tracking])
def test_progress_needs_only_the_standard_library(module: ModuleType) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"), feature_version=(3, 9))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= {"__future__", "json", "math", "re", "collections", "typing", "windlass"}
    source = Path(progress.__file__).parents[2]
    script = f"import sys; sys.path.insert(0, {str(source)!r}); from windlass.worker.progress import Recogniser; "
    script += "print(Recogniser().feed(b'step=4 loss=0.5\\n'))"
    done = subprocess.run([sys.executable, "-S", "-I", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "{'step': 4, 'loss': 0.5}\n"


# ---------------------------------------------------------------- points of metrics


def points(*chunks: str, pattern: str | None = None, at: float = 5.0) -> list[tuple[Any, ...]]:
    """Returns source, name, step, time and value of each point in the chunks."""
    recogniser = Recogniser(pattern)
    for chunk in chunks:
        recogniser.feed(chunk.encode(), at)
    return [*recogniser.points]


def series(**fields: Any) -> str:
    return f"::windlass {json.dumps({'series': fields})}\n"


def test_each_printed_line_of_a_chunk_is_a_point() -> None:
    lines = "".join(f"step {step} loss {step}.5 acc: 0.{step}\n" for step in range(1, 6))
    found = points(lines)
    assert [one for one in found if one[1] == "loss"] == [("log", "loss", n, 5.0, n + 0.5) for n in range(1, 6)]
    assert [one[2:] for one in found if one[1] == "acc"] == [(n, 5.0, n / 10) for n in range(1, 6)]


def test_steps_that_begin_anew_in_each_epoch_go_on_in_the_points() -> None:
    bars = [f"\r{step}/3 ━━━━━━ 3s 12ms/step - loss: 0.{step}" for step in (1, 2, 3)]
    found = points("Epoch 1/2\n", *bars, "\nEpoch 2/2\n", *bars, "\n")
    assert [one[2] for one in found] == [1, 2, 3, 4, 5, 6]
    lines = [f"epoch {epoch} step {step} loss 0.5\n" for epoch in (0, 1) for step in (10, 20, 30)]
    assert [one[2] for one in points(*lines)] == [10, 20, 30, 40, 50, 60]


def test_a_line_without_a_step_has_that_of_the_bar_of_training() -> None:
    found = points(
        "\r 10%|#   | 10/100 [00:01<00:09, 9.00it/s]",
        "\n{'loss': 0.5, 'epoch': 0.1}\n",
        "\r 50%|##  | 5/10 [00:01<00:09, 9.00it/s]",
        "\n{'eval_loss': 0.4, 'epoch': 0.1}\n",
    )
    assert [(one[1], one[2], one[4]) for one in found] == [("loss", 10, 0.5), ("eval_loss", 10, 0.4)]
    assert points("{'loss': 0.5, 'epoch': 0.25}\n")[0][2] == 0.25


def test_a_bar_that_is_drawn_again_has_no_second_point() -> None:
    bar = "\r 10%|#   | 10/100 [00:01<00:09, 9.00it/s, loss=0.5]"
    assert len(points(bar, bar, bar + "\n")) == 1


def test_own_pattern_has_a_point_for_each_line() -> None:
    found = points("it=3 l=0.25\nit=4 l=0.125\nstep 9 loss 9\n", pattern=r"it=(?P<step>\d+) l=(?P<loss>[\d.]+)")
    assert [one[2:] for one in found] == [(3, 5.0, 0.25), (4, 5.0, 0.125)]


def test_points_of_series_replace_printed_ones_of_the_same_metric() -> None:
    reported = series(at=100.0, ms=[0, 50], steps=[7, 8], values={"loss": [0.5, "nan"]})
    found = points(reported + "step 8 loss 0.4 acc: 0.9\n")
    assert found == [
        ("report", "loss", 7, 100.0, 0.5),
        ("report", "loss", 8, 100.05, "nan"),
        ("log", "acc", 8, 5.0, 0.9),
    ]


def test_damaged_series_have_no_points() -> None:
    good = {"at": 1.0, "ms": [0], "steps": [1], "values": {"loss": [0.5]}}
    damaged: list[dict[str, Any]] = [
        {"at": "1"}, {"at": None}, {"at": float("nan")}, {"at": 10**400}, {"ms": [0, 1]}, {"ms": 3}, {"ms": ["x"]},
        {"steps": ["nan"]}, {"steps": [10**400]}, {"values": [1]}, {"values": {"loss": 3}}, {"values": {"loss": [[]]}},
        {"values": {"loss": ["abc"]}}, {"values": {"loss": [10**400]}},
    ]  # fmt: skip
    assert points(*(series(**{**good, **bad}) for bad in damaged)) == []
    assert points('::windlass {"series": 3}\n') == []
    assert len(points(series(**good))) == 1


def test_number_of_points_between_two_reads_is_bounded() -> None:
    one = series(at=1.0, ms=[0] * 500, steps=[1] * 500, values={"loss": [1] * 500})
    assert len(points(one * 100)) == 20_000


def test_a_rank_that_prints_very_many_lines_has_points_of_the_newest_ones() -> None:
    """Reading a line costs more than printing it: the node must not fall behind."""
    recogniser = Recogniser()
    chunks = [b"".join(b"step %d loss 0.%d\n" % (20 * n + k, k) for k in range(20)) for n in range(100)]
    for chunk in chunks[:50]:
        assert recogniser.feed(chunk, 7.0) is not None
    steps = {point[2] for point in recogniser.points}
    assert LINES_PER_SECOND <= len(steps) < LINES_PER_SECOND + 100
    assert {20 * n + 19 for n in range(50)} <= steps
    recogniser.points.clear()
    for at, chunk in enumerate(chunks[50:]):
        recogniser.feed(chunk, 8.0 + at / 10)
    assert len(recogniser.points) == 50 * 20
