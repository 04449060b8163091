"""Rows of Parquet files are read by number; row groups are decoded once per node and cached as Arrow."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from tests.train.stream.sources import Memory, open_in

from windlass.train.stream.cache import Cache
from windlass.train.stream.errors import StreamError
from windlass.train.stream.opening import open_source

NUM_ROWS, NUM_IN_GROUP = 50, 7


def row(number: int) -> dict[str, Any]:
    return {
        "number": number,
        "text": f"row {number}",
        "image": bytes([number]) * 100,
        "none": None if number % 2 else 1.5,
    }


def files(num: int = 2) -> dict[str, bytes]:
    from pyarrow import parquet

    found = {}
    for file in range(num):
        made = io.BytesIO()
        rows = [row(number) for number in range(file * NUM_ROWS, (file + 1) * NUM_ROWS)]
        parquet.write_table(pyarrow.Table.from_pylist(rows), made, row_group_size=NUM_IN_GROUP)
        found[f"part-{file}.parquet"] = made.getvalue()
    return found


@pytest.mark.parametrize("cache_bytes", [None, 0])
def test_rows_are_read_by_number(tmp_path: Path, cache_bytes: int | None) -> None:
    found = open_in(tmp_path, Memory(files()), cache_bytes)
    assert len(found) == 2 * NUM_ROWS
    order = [99, 0, 50, 49, 0, -1]
    assert [{**one, "__key__": ""} for one in found.__getitems__(order)] == [
        {**row(number % 100), "__key__": ""} for number in order
    ]
    assert found[57]["__key__"] == "part-1.parquet#1/0"
    assert [one["number"] for one in found] == list(range(100))


def test_a_row_group_is_decoded_once_for_all_processes(tmp_path: Path) -> None:
    source = Memory(files())
    list(open_in(tmp_path, source))
    source.reads.clear()
    assert [one["number"] for one in open_in(tmp_path, source)] == list(range(100))
    assert source.reads == []


@pytest.mark.parametrize("is_local", [False, True])
def test_row_groups_of_older_versions_are_not_kept(tmp_path: Path, is_local: bool) -> None:
    (tmp_path / "set").mkdir()
    memory = Memory({})
    source = open_source(str(tmp_path / "set")) if is_local else memory
    kept = []
    for name, data in [("a", files(1)), ("b", files(1)), ("a", files(2))]:
        *_, made = data.values()
        memory.write(f"{name}.parquet", made)
        (tmp_path / "set" / f"{name}.parquet").write_bytes(made)
        for columns in (None, ["number"]):
            list(open_in(tmp_path, source, columns=columns))
        kept.append(len(list((tmp_path / "cache").rglob("*.arrow"))))
    num_groups = -(-NUM_ROWS // NUM_IN_GROUP)
    assert kept == [2 * num_groups, 4 * num_groups, 4 * num_groups]
    cache = Cache(tmp_path / "cache")
    assert cache.usage() == cache._counted()


def test_rows_are_read_in_a_fork(tmp_path: Path) -> None:
    found = open_in(tmp_path, Memory(files()), cache_bytes=0)
    assert found[3]["number"] == 3
    child = os.fork()
    if not child:
        os._exit(0 if [found[number]["number"] for number in (99, 3)] == [99, 3] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_only_chosen_columns_are_read(tmp_path: Path) -> None:
    found = open_in(tmp_path, Memory(files(1)), columns=["text"])
    assert found[8] == {"__key__": "part-0.parquet#1/1", "text": "row 8"}
    both = open_in(tmp_path, Memory(files(1)), columns=["text", "number"])
    assert both[8] == {"__key__": "part-0.parquet#1/1", "text": "row 8", "number": 8}
    with pytest.raises(StreamError, match="has no column nothing; it has"):
        open_in(tmp_path, Memory(files(1)), columns=["nothing"])[0]


def test_file_that_is_not_parquet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StreamError, match=r"a\.parquet cannot be read as Parquet"):
        open_in(tmp_path, Memory({"a.parquet": b"PAR1" * 100}))


def test_missing_pyarrow_is_named(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.parquet").write_bytes(files(1)["part-0.parquet"])
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from windlass.train import stream\n"
        "stream(sys.argv[1] + '/set', cache=sys.argv[1] + '/cache')"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert "StreamError: Parquet needs pyarrow: pip install pyarrow" in done.stderr
