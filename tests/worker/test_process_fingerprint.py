"""Control groups with the same limits have the same fingerprint."""

from __future__ import annotations

from pathlib import Path

from windlass.worker.process_fingerprint import cgroup_limits


def group(mount: Path, path: str, **files: str) -> None:
    (mount / path).mkdir(parents=True, exist_ok=True)
    (mount / path / "cgroup.controllers").write_text("cpu memory\n")
    for name, value in files.items():
        (mount / path / name.replace("_", ".")).write_text(value + "\n")


def test_logins_without_limits_have_equal_fingerprints(tmp_path: Path) -> None:
    group(tmp_path, "user.slice", memory_max="max")
    group(tmp_path, "user.slice/user-1000.slice", memory_max="8589934592", pids_max="9000")
    for number in (1, 2):
        group(tmp_path, f"user.slice/user-1000.slice/session-{number}.scope", memory_max="max", cpu_max="max 100000")
    one, other = (
        cgroup_limits(f"0::/user.slice/user-1000.slice/session-{number}.scope\n", str(tmp_path)) for number in (1, 2)
    )
    assert one == other == [["/user.slice/user-1000.slice", "memory.max", "8589934592"]]


def test_groups_with_limits_differ_even_if_the_limits_are_equal(tmp_path: Path) -> None:
    """A fork is charged to the control group of its parent."""
    for name in "ab":
        group(tmp_path, name, memory_max="1000000")
    assert cgroup_limits("0::/a\n", str(tmp_path)) != cgroup_limits("0::/b\n", str(tmp_path))


def test_groups_with_unreadable_limits_differ_by_name(tmp_path: Path) -> None:
    group(tmp_path, "")
    for lines in ("4:memory:/a\n0::/\n", "0::/../b\n", "0::/nonexistent\n"):
        assert cgroup_limits(lines, str(tmp_path)) == lines
    assert cgroup_limits("0::/\n", str(tmp_path)) == []
