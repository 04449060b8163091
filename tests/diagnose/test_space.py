"""Errors about space and write permission name the file system, and where the results of a run belong."""

from __future__ import annotations

import pytest
from tests.diagnose.test_rules import failed

SCRATCH = {"mount": "/scratch", "bytes": 2_000_000, "free_bytes": 100_000, "files": 500, "free_files": 400}
SAVES = 'Traceback (most recent call last):\n  File "/job/train.py", line 7, in <module>\n    save()\n'
TORCH = (
    SAVES + "RuntimeError: [enforce fail at inline_container.cc:603] . PytorchStreamWriter failed writing file data/0\n"
)


def test_the_file_system_that_was_full_is_named_and_no_other() -> None:
    verdict = failed(TORCH, host={"free_bytes": {"/out": 10**11}, "without_space": [SCRATCH]}).verdict
    assert (verdict.code, verdict.summary) == (
        "disk-full",
        "no space was left on /scratch for the script to write a file",
    )
    assert "/scratch had 0.1 MB left of 2.0 MB" in verdict.evidence
    assert "/out" not in str(verdict.evidence)
    assert verdict.fix.startswith("free some space on /scratch, or write elsewhere")


def test_of_the_disk_of_the_results_fewer_checkpoints_are_the_fix() -> None:
    verdict = failed(TORCH, host={"without_space": [{**SCRATCH, "mount": "/"}]}).verdict
    assert "checkpoint: {keep: 1}" in verdict.fix


def test_where_several_are_full_none_is_blamed_alone() -> None:
    verdict = failed(TORCH, host={"without_space": [SCRATCH, {**SCRATCH, "mount": "/cache"}]}).verdict
    assert verdict.summary == "no space was left for the script to write a file"
    assert len([line for line in verdict.evidence if "MB left" in line]) == 2


def test_a_file_system_without_inodes_has_too_many_files() -> None:
    full = {**SCRATCH, "bytes": 10**9, "free_bytes": 9 * 10**8, "free_files": 0}
    assert (
        "/scratch had no inode left of 500: it has too many files"
        in failed(TORCH, host={"without_space": [full]}).verdict.evidence
    )


@pytest.mark.parametrize(
    ("source", "copy", "code"),
    [
        ("/dev/shm/model.pt", "/out/model.pt", "disk-full"),
        ("/out/model.pt", "/dev/shm/model.pt", "shm-full"),
        ("/data/model.pt", "/out/model.pt", "disk-full"),
    ],
)
def test_the_copy_of_a_file_and_not_its_source_lacks_space(source: str, copy: str, code: str) -> None:
    line = f"shutil.copy('{source}', '{copy}')"
    error = f"OSError: [Errno 28] No space left on device: '{source}' -> '{copy}'"
    verdict = failed(SAVES + error, sources={"/job/train.py:7": line}).verdict
    assert verdict.code == code
    assert code == "shm-full" or verdict.summary.endswith(f"for the script to write {copy}")


@pytest.mark.parametrize(
    ("error", "source", "is_output"),
    [
        ("OSError: [Errno 30] Read-only file system: '/data/runs'", "open(path)", True),
        ("PermissionError: [Errno 13] Permission denied: '/data/runs'", "os.makedirs('/data/runs')", True),
        ("PermissionError: [Errno 13] Permission denied: '/data/m.pt'", "open('/data/m.pt', 'wb')", True),
        ("PermissionError: [Errno 13] Permission denied: '/data/set.bin'", "open('/data/set.bin', 'rb')", False),
        ("OSError: [Errno 30] Read-only file system: '/out/x'", "open(path, 'w')", False),
    ],
)
def test_what_may_not_be_written_belongs_into_the_outputs(error: str, source: str, is_output: bool) -> None:
    trace = SAVES.replace("save()", source)
    verdict = failed(trace + error, sources={"/job/train.py:7": source}).verdict
    assert (verdict.code, "$WINDLASS_OUTPUT_DIR" in verdict.fix) == ("permission-denied", is_output)
