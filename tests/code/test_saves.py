"""Scripts that save only after their loops are recognised."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.code.saves import saves_at_end
from windlass.plan.notes import time_limit
from windlass.spec.job import Job

LOOP = "for epoch in range(3):\n    print(epoch)\n"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("import torch\n" + LOOP + "torch.save(1, 'm.pt')\n", "train.py:4"),
        (
            "def train():\n    for step in range(3):\n        print(step)\ndef main():\n    train()\n"
            "    model.save_pretrained('out')\nmain()\n",
            "train.py:6",
        ),
        ("import torch\nfor epoch in range(3):\n    torch.save(epoch, 'm.pt')\n", ""),
        ("import torch\ndef keep(n):\n    torch.save(n, 'm.pt')\nwhile True:\n    keep(1)\n", ""),
        (
            "import torch\ndef keep(n):\n    write(n)\ndef write(n):\n    torch.save(n, 'm')\n"
            "while True:\n    t.keep(1)\n",
            "",
        ),
        ("import torch, signal\n" + LOOP + "torch.save(1, 'm.pt')\n", ""),
        ("from windlass.train import Checkpoint\nimport torch\n" + LOOP + "torch.save(1, 'm.pt')\n", ""),
        ("import transformers, torch\n" + LOOP + "torch.save(1, 'm.pt')\n", ""),
        (LOOP, ""),
        ("import torch\ntorch.save(1, 'm.pt')\n", ""),
        ("for step in\n", ""),
    ],
)
def test_script_that_saves_only_after_its_loops_is_recognised(text: str, at: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text)
    assert saves_at_end(Job(name="a", run="train.py"), tmp_path) == at


def test_missing_script_or_a_program_is_not_analysed(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("true\n")
    for run in ("train.py", "train.sh", "-m train"):
        assert saves_at_end(Job(name="a", run=run), tmp_path) == ""


def test_time_limit_that_would_leave_no_result_is_a_warning() -> None:
    [note] = time_limit(Job(name="a", run="train.py", timeout=60.0), "train.py:40")
    assert (note.code, note.blocks, "train.py:40" in note.message) == ("timeout-unsaved", False, True)
    assert not list(time_limit(Job(name="a", run="train.py"), "train.py:40"))
    assert not list(time_limit(Job(name="a", run="train.py", timeout=60.0), ""))
