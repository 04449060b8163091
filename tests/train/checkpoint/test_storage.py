"""The folder given by a script determines where a checkpoint is stored."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from windlass.train.checkpoint import Checkpoint
from windlass.train.checkpoint.storage import absolute


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ("checkpoints", "HERE/checkpoints"),
        ("~/checkpoints", "/home/me/checkpoints"),
        ("~", "/home/me"),
        ("/a/~", "/a/~"),
        ("s3://bucket/~/", "s3://bucket/~"),
        ("s3://", "s3://"),
    ],
)
def test_folder_is_an_absolute_path_or_an_address(
    written: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert absolute(written) == place.replace("HERE", str(tmp_path))


@pytest.mark.parametrize("address", ["s3://", "gs://", "s3:///checkpoints"])
def test_address_without_a_bucket_is_refused_and_creates_no_folder(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="s3://BUCKET/PREFIX"):
        Checkpoint(folder=address, model=nn.Linear(1, 1))
    assert list(tmp_path.iterdir()) == []
