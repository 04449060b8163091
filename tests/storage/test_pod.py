"""The transfer program of a pod parses its request, reports its outcome and exits correctly; stores are folders
here.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests.storage.pods import Pods

from windlass.errors import StorageError, UsageError
from windlass.storage.pod import INTERRUPTED, RESULT_BYTES, bounded_error, bounded_results, transfer

EMPTY_SET = f"set:{hashlib.sha256(b'').hexdigest()}"


@pytest.fixture
def pods(tmp_path: Path) -> Pods:
    return Pods(tmp_path)


def test_a_set_is_staged_by_python_alone_and_the_outcome_is_that_of_the_lines(pods: Pods, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.bin").write_bytes(b"one")
    first = pods.stage(str(tmp_path / "source")).ended()
    assert (first.code, first.err) == (0, "")
    [line] = first.outcome["results"]
    assert (line["name"], line["files"], line["bytes"], line["moved"]) == ("set", 1, 3, 3)
    assert first.lines[-1] == line
    assert (pods.link() / "a.bin").read_bytes() == b"one"
    assert not pods.link().readlink().is_absolute()
    again = pods.stage(str(tmp_path / "source"), "r-2").ended()
    assert (again.code, again.outcome["results"]) == (0, [{**line, "moved": 0}])


@pytest.mark.parametrize("is_there", [False, True])
def test_missing_outputs_are_an_empty_set(tmp_path: Path, is_there: bool) -> None:
    if is_there:
        (tmp_path / "output").mkdir()
    request = {"kind": "upload", "state": str(tmp_path / "state"), "name": "outputs"}
    [line] = transfer(json.dumps({**request, "source": str(tmp_path / "output"), "destination": str(tmp_path / "to")}))
    assert line == {
        "name": "outputs",
        "digest": EMPTY_SET,
        "files": 0,
        "bytes": 0,
        "moved": 0,
        "refused": [],
        "failed": 0,
    }


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"kind": "other"}', '{"kind": "stage", "root": "/r", "sets": [{"name": "x"}]}']
)
def test_invalid_transfer_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="WINDLASS_TRANSFER is no transfer that this version knows"):
        list(transfer(text))


def test_other_stores_than_s3_name_what_is_missing(pods: Pods) -> None:
    ended = pods.stage("gs://bucket/set").ended()
    assert (ended.code, ended.err, ended.lines) == (64, "", [ended.outcome])
    assert ended.outcome == {
        "error": "gs://bucket/set/: gs:// is reached by obstore, which this image lacks",
        "hint": "pip install 'obstore<0.13' in it, or name one that has it: supervisor_image: of the target",
    }


def test_a_store_that_does_not_answer_has_the_job_make_another_pod(pods: Pods) -> None:
    away = {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
    ended = pods.stage("s3://bucket/set", **away).ended()
    assert ended.code == INTERRUPTED
    assert "does not answer" in ended.lines[-1]["error"]


def test_an_outcome_that_cannot_be_written_changes_nothing_else(pods: Pods, tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    pod = pods.upload(tmp_path / "output", str(tmp_path / "to"), WINDLASS_TRANSFER_RESULT=str(tmp_path / "no" / "log"))
    ended = pod.ended()
    assert (ended.code, len(ended.lines)) == (0, 1)
    assert "the outcome cannot be written" in ended.err


def test_an_outcome_of_many_refused_files_fits_and_counts_them() -> None:
    refused = [f"{'🎉' * 500}/{number}: its name is longer than 255 bytes" for number in range(1000)]
    [line] = json.loads(data := bounded_results([{"name": "outputs", "digest": EMPTY_SET, "refused": refused}]))[
        "results"
    ]
    assert len(data) <= RESULT_BYTES
    assert (line["digest"], line["num_refused"], len(line["refused"])) == (EMPTY_SET, 1000, 5)
    assert all(one.startswith("🎉") for one in line["refused"])


def test_an_outcome_of_many_sets_has_as_many_as_fit_and_counts_the_others() -> None:
    lines = [{"name": f"set-{number}", "digest": EMPTY_SET, "files": 1, "bytes": 1, "moved": 1} for number in range(99)]
    found = json.loads(data := bounded_results(lines))
    assert RESULT_BYTES - 300 < len(data) <= RESULT_BYTES
    assert found["results"] == lines[: len(found["results"])]
    assert found["left_out"] == 99 - len(found["results"])


def test_long_error_is_truncated_to_fit() -> None:
    data = bounded_error(StorageError("ü" * 5000, f"{'x' * 5000}"))
    assert len(data) <= RESULT_BYTES
    found = json.loads(data)
    assert (found["error"][:9], found["error"][-1], found["hint"][-1]) == ("ü" * 9, "…", "…")


def test_sets_of_a_volume_are_listed_and_one_is_removed_that_no_run_reads(pods: Pods, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.bin").write_bytes(b"one")
    source = str(tmp_path / "source")
    of_runs = [("team", "r-1"), ("team", "r-2"), ("other", "r-1")]
    sets = [{"name": "x", "source": source, "link": f"{root}/runs/{of}/{run}/x"} for of, run in of_runs]

    def asked(**request: object) -> dict[str, Any]:
        [*_, line] = transfer(json.dumps({"root": str(root), "namespace": "team", **request}))
        return dict(line)

    assert asked(kind="list") == {"sets": [], "runs": []}
    staged = asked(kind="stage", sets=sets)
    found = asked(kind="list")
    [one] = found["sets"]
    assert (one["digest"], one["files"], one["bytes"], one["sources"]) == (staged["digest"], 1, 3, [source])
    assert found["runs"] == ["r-1", "r-2"]
    with pytest.raises(UsageError, match="is read by r-1 of namespace other, r-2") as raised:
        asked(kind="remove", which=source, gone=["r-1"])
    assert raised.value.hint == "it can be removed after `windlass rm` of them"
    assert not (root / "runs" / "team" / "r-1").exists()
    (root / "runs" / "other" / "r-1" / "x").unlink()
    assert asked(kind="remove", which=staged["digest"][:12], gone=["r-2"])["removed"]["digest"] == staged["digest"]
    assert asked(kind="list") == {"sets": [], "runs": []}
