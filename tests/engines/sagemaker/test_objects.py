"""What a run has in a store that is a folder of this machine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from windlass.engines.sagemaker import objects


def test_several_runs_send_the_same_code_at_once(tmp_path: Path) -> None:
    address = f"file://{tmp_path}/code"
    data = bytes(1 << 16)
    with ThreadPoolExecutor(8) as pool:
        sent = [pool.submit(objects.put, address, {"code.tar.gz": data}, tmp_path) for _ in range(100)]
    assert [one.exception() for one in sent if one.exception() is not None] == []
    folder = tmp_path / "code"
    assert [path.name for path in folder.iterdir()] == ["code.tar.gz"]
    assert (folder / "code.tar.gz").read_bytes() == data
    assert objects.is_there(address, "code.tar.gz", len(data), tmp_path)
