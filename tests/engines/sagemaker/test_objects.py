"""Objects of a run in a store that is a folder of this machine."""

from __future__ import annotations

import tarfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.helpers.disk import small_disk
from tests.servers.s3 import s3_server

from windlass.engines.sagemaker import layout, objects
from windlass.errors import EngineError


def test_several_runs_send_the_same_code_at_once(tmp_path: Path) -> None:
    address = f"file://{tmp_path}/code"
    data = bytes(1 << 16)
    with ThreadPoolExecutor(8) as pool:
        sent = [pool.submit(objects.put, address, {"code.tar.gz": data}, tmp_path) for _ in range(100)]
    assert [one.exception() for one in sent if one.exception() is not None] == []
    folder = tmp_path / "code"
    assert [path.name for path in folder.iterdir()] == ["code.tar.gz"]
    assert (folder / "code.tar.gz").read_bytes() == data
    assert objects.has_file(address, "code.tar.gz", len(data), tmp_path)


def test_link_that_leads_out_is_skipped_and_rest_of_model_unpacked(tmp_path: Path) -> None:
    model, store = tmp_path / "model", tmp_path / "store"
    model.mkdir()
    store.mkdir()
    (model / "step-100").write_text("weights")
    (model / "latest").symlink_to("/opt/ml/model/step-100")
    with tarfile.open(store / layout.MODEL_ARCHIVE, "w:gz") as tar:
        tar.add(model, ".")
    skipped = objects.fetch_model(f"file://{store}/", tmp_path / "output", tmp_path)
    assert skipped == ["./latest: a link that leads out, to /opt/ml/model/step-100"]
    assert [(path.name, path.read_text()) for path in (tmp_path / "output").iterdir()] == [("step-100", "weights")]


@pytest.mark.parametrize("rest", [b"", b"\xff" * 100], ids=["truncated", "damaged"])
def test_model_that_is_no_complete_archive_is_an_error_of_the_engine(tmp_path: Path, rest: bytes) -> None:
    model, archive = tmp_path / "model.pt", tmp_path / "store" / layout.MODEL_ARCHIVE
    model.write_bytes(bytes(100_000))
    archive.parent.mkdir()
    with tarfile.open(tmp_path / "model.tar", "w") as tar:
        tar.add(model, "model.pt")
    gzip = zlib.compressobj(wbits=31)
    half = (tmp_path / "model.tar").read_bytes()[:50_000]
    archive.write_bytes(gzip.compress(half) + gzip.flush(zlib.Z_FULL_FLUSH) + rest)
    with pytest.raises(EngineError, match="cannot be read"):
        objects.fetch_model(f"file://{archive.parent}/", tmp_path / "output", tmp_path)


@pytest.mark.slow
def test_run_can_be_deleted_without_its_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(tmp_path / "s3") as server:
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        assert not objects.has_any("s3://gone/runs/r-1/checkpoints", tmp_path)
        objects.remove("s3://gone/runs/r-1", tmp_path)


def test_full_disk_leaves_no_partial_file_of_model(tmp_path: Path) -> None:
    model, store = tmp_path / "model.pt", tmp_path / "store"
    model.write_bytes(bytes(300_000))  # compresses to almost nothing in the archive
    store.mkdir()
    with tarfile.open(store / layout.MODEL_ARCHIVE, "w:gz") as tar:
        tar.add(model, "a.pt")
        tar.add(model, "b/b.pt")
    with small_disk(tmp_path / "home", 400) as home:
        (home / "output").mkdir()
        (home / "output" / "a.pt").write_text("earlier")
        with pytest.raises(EngineError, match="No space left"):
            objects.fetch_model(f"file://{store}/", home / "output", home)
        found = [(path.name, path.read_text()) for path in home.rglob("*") if path.is_file()]
        assert found == [("a.pt", "earlier")], "the model of the earlier attempt"
