"""torch.distributed.checkpoint can read a checkpoint without the class that wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.train.checkpoint.saved import make
from torch.distributed.checkpoint.state_dict_loader import load

from windlass.train.checkpoint.files import list_checkpoints
from windlass.train.checkpoint.reader import FolderReader


@pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")
def test_dcp_loads_a_checkpoint_by_the_names_of_its_tensors(tmp_path: Path) -> None:
    weights = make(tmp_path, 2)
    reader = FolderReader(list_checkpoints(tmp_path)[0].path)
    flat, nested = {"model.weight": torch.zeros(3, 4)}, {"model": {"weight": torch.zeros(3, 4)}}
    load(flat, storage_reader=reader)
    load(nested, storage_reader=reader)
    assert torch.equal(flat["model.weight"], weights[-1])
    assert torch.equal(nested["model"]["weight"], weights[-1])
