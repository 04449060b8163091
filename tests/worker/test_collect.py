"""New and changed files of the code folder: which are listed, and which are copied to the outputs."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from tests.helpers.deep import deep_tree

from windlass.worker.collect import Collection, matches, step_of_clock
from windlass.worker.protocol import CodeFiles, CollectSpec, SavedState


def write(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


class Folder:
    """Code folder of a run, and its outputs."""

    def __init__(self, tmp_path: Path) -> None:
        self.code, self.output = tmp_path / "code", tmp_path / "output"
        write(self.code / "train.py")
        write(self.code / "out" / "old.pt")
        self.output.mkdir()
        self.since = time.time()
        while write(tmp_path / "probe").stat().st_ctime <= self.since:
            pass  # file system clocks may have a resolution of 10 ms

    def collection(
        self, *patterns: str, skip: tuple[str, ...] = (), shared: bool = True, clock_step: float = 0.0, **env: str
    ) -> Collection:
        request = CollectSpec(patterns, skip, shared, self.since)
        return Collection(request, str(self.code), str(self.output), env, clock_step)

    def collect(self, *patterns: str, node: int = 0, shared: bool = True, began: float = 0.0) -> CodeFiles:
        found = self.collection(*patterns, shared=shared)
        found.copy(found.wanted(), node=node, began=began, is_first=node == 0, is_stop_requested=lambda: False)
        return found.report(0.0)

    def write(self, name: str, text: str = "x") -> Path:
        return write(self.code / name, text)

    def copied(self) -> list[str]:
        return sorted(str(path.relative_to(self.output)) for path in self.output.rglob("*") if path.is_file())


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def listed(report: CodeFiles) -> list[str]:
    return [one.path for one in report.largest]


def test_new_and_changed_files_are_listed_the_largest_first_and_ten_at_most(folder: Folder) -> None:
    for number in range(11):
        folder.write(f"out/{number}.pt", "x" * (number + 1))
    folder.write("out/old.pt", "x" * 100)
    report = folder.collection().report(0.0)
    assert listed(report) == ["out/old.pt", *(f"out/{number}.pt" for number in range(10, 1, -1))]
    assert (report.left, report.left_bytes, report.is_cut) == (12, 166, False)


def test_copy_with_preserved_mtime_counts_as_new(folder: Folder) -> None:
    old = write(folder.code.parent / "old")
    os.utime(old, (1, 1))
    shutil.copy2(old, folder.code / "best.pt")
    assert listed(folder.collection().report(0.0)) == ["best.pt"]


def test_ignored_files_are_listed_and_caches_are_not(folder: Folder) -> None:
    folder.write(".gitignore", "*.pt\n")
    folder.write("a.pt")
    for name in (
        "__pycache__/a.pyc",
        ".git/index",
        ".ipynb_checkpoints/a.ipynb",
        ".cache/x",
        "models--bert/blobs/x",
        "hf/hub/x",
        ".venv/lib/x",
        "env/pyvenv.cfg",
        "env/lib/x",
        "any/CACHEDIR.TAG",
        "any/x",
    ):
        folder.write(name)
    report = folder.collection(HF_HOME=str(folder.code / "hf")).report(0.0)
    assert sorted(listed(report)) == [".gitignore", "a.pt"]


def test_folders_of_windlass_in_the_code_folder_are_skipped(folder: Folder) -> None:
    folder.output = folder.code / "results" / "digits-1"
    for name in ("results/digits-1/a.pt", "results/digits-2/b.pt", "ck/step-1/c", "home/record.db", "d.pt"):
        folder.write(name)
    skip = (str(folder.code / "results"), str(folder.code / "home"))
    found = folder.collection("**", skip=skip, WINDLASS_CHECKPOINT_DIR=str(folder.code / "ck"))
    assert [one.path for one in found.wanted()] == ["d.pt"]
    assert folder.collection("results/**", skip=skip).wanted() == []


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("out/**", ["out/a.pt", "out/deep/b.pt"]),
        ("out", ["out/a.pt", "out/deep/b.pt"]),
        ("out/", ["out/a.pt", "out/deep/b.pt"]),
        ("*.pt", ["top.pt"]),
        ("**/*.pt", ["out/a.pt", "out/deep/b.pt", "top.pt"]),
        ("out/*", ["out/a.pt", "out/deep/b.pt"]),
        ("out/?.pt", ["out/a.pt"]),
        ("o[tu]*/[!b].pt", ["out/a.pt"]),
        ("[*]", ["*"]),
        ("a.pt", []),
    ],
)
def test_patterns_name_paths_in_the_code_folder(folder: Folder, pattern: str, matches: list[str]) -> None:
    for name in ("out/a.pt", "out/deep/b.pt", "top.pt", "*"):
        folder.write(name)
    assert sorted(one.path for one in folder.collection(pattern).wanted()) == matches


def test_matching_files_are_copied_and_others_are_listed(folder: Folder) -> None:
    source = folder.write("out/deep/model.pt", "weights")
    folder.write("log.txt")
    report = folder.collect("out/**", "**/model.pt")
    assert folder.copied() == ["out/deep/model.pt"], "out/old.pt is of before the run"
    copy = folder.output / "out/deep/model.pt"
    assert copy.read_text() == "weights"
    assert copy.stat().st_mtime_ns == source.stat().st_mtime_ns
    assert (report.copied, report.copied_bytes, listed(report)) == (1, 7, ["log.txt"])


def test_later_attempt_copies_files_changed_since(folder: Folder) -> None:
    kept, changed = folder.write("out/a"), folder.write("out/b", "one")
    folder.collect("out/**")
    before = (folder.output / "out/a").stat().st_ino
    changed.write_text("two")
    assert folder.collect("out/**").copied == 2
    assert (folder.output / "out/b").read_text() == "two"
    assert (folder.output / "out/a").stat().st_ino == before, kept


def test_links_that_lead_out_of_the_code_folder_are_not_followed(folder: Folder, tmp_path: Path) -> None:
    write(tmp_path / "elsewhere" / "secret")
    (folder.code / "away").symlink_to(tmp_path / "elsewhere")
    (folder.code / "one").symlink_to(tmp_path / "elsewhere" / "secret")
    folder.write("out/step-2.pt", "new")
    (folder.code / "out" / "latest.pt").symlink_to("step-2.pt")
    report = folder.collect("**", "away/**")
    assert folder.copied() == ["out/latest.pt", "out/step-2.pt"]
    assert (folder.output / "out/latest.pt").read_text() == "new"
    assert report.problems == ("away leads out of the code folder and was skipped",)


def test_link_to_a_folder_of_the_code_folder_is_followed_if_a_pattern_names_it(folder: Folder) -> None:
    folder.write("runs/v1/model.pt", "new")
    (folder.code / "latest").symlink_to("runs/v1")
    report = folder.collect("./latest")
    assert (folder.copied(), report.problems, report.has_none) == (["latest/model.pt"], (), False)


def test_old_link_to_a_file_that_the_run_has_changed_is_collected(tmp_path: Path) -> None:
    write(tmp_path / "code" / "best.pt").with_name("latest.pt").symlink_to("best.pt")
    write(tmp_path / "elsewhere")
    (tmp_path / "code" / "away.pt").symlink_to(tmp_path / "elsewhere")
    folder = Folder(tmp_path)
    assert folder.collection("*.pt").wanted() == []
    folder.write("best.pt", "new")
    write(tmp_path / "elsewhere", "new")
    folder.collect("latest.pt", "away.pt")
    assert folder.copied() == ["latest.pt"]


def test_files_are_collected_after_the_clock_was_set_back_during_the_run(folder: Folder) -> None:
    folder.write("a.pt")
    folder.since += 3600  # when the run began, the clock was an hour ahead
    assert folder.collection("*.pt").wanted() == []
    found = folder.collection("*.pt", clock_step=-3600.0)
    assert [one.path for one in found.wanted()] == ["a.pt"]
    assert found.report(0.0).problems == (
        "the clock was set back by 3,600 s during the run, so files that changed up to 3,600 s before it count as new",
    )


def test_clock_step_is_the_difference_of_the_passed_wall_and_monotonic_time() -> None:
    assert step_of_clock(began=(1000.0, 50.0), now=(1010.0, 60.0)) == 0.0
    assert step_of_clock(began=(1000.0, 50.0), now=(1009.5, 60.0)) == 0.0, "less than a second is no step"
    assert step_of_clock(began=(1000.0, 50.0), now=(1900.0, 60.0)) == 0.0, "no file is missed after a step ahead"
    assert step_of_clock(began=(1000.0, 50.0), now=(910.0, 60.0)) == -100.0


def test_immediate_stop_ends_the_copy_without_partial_file(folder: Folder) -> None:
    folder.write("a.pt")
    found = folder.collection("*.pt")
    found.copy(found.wanted(), node=0, is_first=True, is_stop_requested=lambda: True)
    assert found.report(0.0).problems == ("the run was stopped meanwhile",)
    assert list(folder.output.iterdir()) == []


def test_unreadable_file_is_reported_and_others_are_copied(folder: Folder) -> None:
    (gone := folder.write("a.pt")).touch()
    folder.write("b.pt")
    found = folder.collection("*.pt")
    wanted = found.wanted()
    gone.unlink()
    found.copy(wanted, node=0, is_first=True, is_stop_requested=lambda: False)
    assert (folder.copied(), found.report(0.0).problems) == (["b.pt"], ("a.pt: No such file or directory",))


def test_occupied_path_in_the_outputs_does_not_stop_other_copies(folder: Folder) -> None:
    folder.write("a.pt")
    folder.write("b.pt")
    folder.write("out/c.pt")
    (folder.output / "a.pt").mkdir()
    write(folder.output / "out")
    report = folder.collect("**")
    assert (folder.copied(), report.copied) == (["b.pt", "out"], 1)
    assert sorted(report.problems) == ["a.pt: Is a directory", "out/c.pt: File exists"]


def test_file_larger_than_the_free_space_is_not_copied(folder: Folder) -> None:
    large = folder.write("a.memmap")
    os.truncate(large, 1 << 40)
    folder.write("b.pt")
    report = folder.collect("**")
    assert folder.copied() == ["b.pt"]
    assert report.problems[0].startswith("a.memmap: it takes 1,099,511,627,776 bytes, and ")


def test_growing_file_is_copied_up_to_its_size_at_the_start(folder: Folder) -> None:
    grows = folder.write("a.log", "1")
    found = folder.collection("*.log")
    wanted = found.wanted()
    grows.write_text("12")

    def is_stop_requested() -> bool:
        grows.write_text("123")
        return False

    found.copy(wanted, node=0, is_first=True, is_stop_requested=is_stop_requested)
    assert (folder.output / "a.log").read_text() == "12"
    assert found.report(0.0).copied_bytes == 2


def test_file_replaced_by_a_pipe_does_not_block(folder: Folder) -> None:
    pipe = folder.write("a.log")
    found = folder.collection("*.log")
    wanted = found.wanted()
    pipe.unlink()
    os.mkfifo(pipe)
    found.copy(wanted, node=0, is_first=True, is_stop_requested=lambda: False)
    assert found.report(0.0).problems == ("a.log: it is no longer a regular file",)


def test_kernel_file_systems_are_not_searched() -> None:
    found = Collection(CollectSpec(("proc/**", "sys/**", "dev/**")), "/", "/nowhere", {})
    assert found.wanted() == []


def test_search_ends_when_a_stop_is_requested(folder: Folder) -> None:
    folder.write("a.pt")
    found = folder.collection("*.pt")
    assert found.wanted(lambda: True) == []
    assert (found.has_none, found.report(0.0).problems) == (False, ("the run was stopped meanwhile",))


def test_file_of_the_first_node_is_kept_if_two_nodes_copy_one_path(
    folder: Folder,
) -> None:
    write(folder.output / "log.txt", "node 0")
    folder.write("log.txt", "node 1")
    report = folder.collect("*.txt", node=1, shared=False)
    assert (folder.output / "log.txt").read_text() == "node 0"
    assert report.problems == ("log.txt already exists, written by another node",)
    report = folder.collect("*.txt", shared=False)
    assert (folder.output / "log.txt").read_text() == "node 1"
    assert report.problems == ("log.txt existed already, from another node or the script, and was replaced",)


def test_equal_file_of_another_node_counts_as_copied(folder: Folder) -> None:
    folder.write("log.txt", "the same")
    os.utime(write(folder.output / "log.txt", "the same"), (1, 1))
    report = folder.collect("*.txt", node=1, shared=False)
    assert (report.copied, report.left, report.problems) == (1, 0, ())


def test_node_replaces_its_copies_of_an_earlier_attempt(folder: Folder) -> None:
    write(folder.output / "rank-1.pt", "attempt 1")
    folder.write("rank-1.pt", "attempt 2, longer")
    assert folder.collect("*.pt", node=1, shared=False, began=time.time() + 1).problems == ()
    assert (folder.output / "rank-1.pt").read_text() == "attempt 2, longer"


def test_nodes_copying_one_path_at_once_use_separate_partial_files(folder: Folder) -> None:
    folder.write("log.txt", "node 1")
    found = folder.collection("*.txt", shared=False)

    def other_node() -> bool:
        assert [path.name for path in folder.output.iterdir()] == [".windlass-partial-1"]
        write(folder.output / "log.txt", "node 0")
        return False

    found.copy(found.wanted(), node=1, is_first=False, is_stop_requested=other_node)
    assert (folder.output / "log.txt").read_text() == "node 0"
    assert found.report(0.0).problems == ("log.txt already exists, written by another node",)
    assert folder.copied() == ["log.txt"]


def test_newest_saved_state_is_reported_from_any_folder(folder: Folder) -> None:
    assert folder.collection().report(0.0).save is None, "old.pt is older than the run"
    os.utime(folder.write("out/a.pt", "abc"), (folder.since + 1, folder.since + 1))
    os.utime(write(folder.output / "step_5" / "model.safetensors"), (folder.since + 2, folder.since + 2))
    os.utime(folder.write("data.csv"), (folder.since + 9, folder.since + 9))
    found = folder.collection().report(0.0).save
    assert found == SavedState(str(folder.output / "step_5" / "model.safetensors"), 1, folder.since + 2)
    os.utime(folder.write("out/b.ckpt"), (folder.since + 3, folder.since + 3))
    found = folder.collect("out/**").save
    assert found is not None
    assert found.path == "out/b.ckpt", "not its copy in the output"


def test_deeply_nested_folders_are_searched(folder: Folder) -> None:
    with deep_tree(folder.code) as inner:
        (inner / "x.pt").touch()
        found = folder.collection("**/x.pt")
        assert [Path(one.path).name for one in found.wanted()] == ["x.pt"]
        assert found.report(0.0).left == 1
        (inner / "x.pt").unlink()


def test_listing_stops_at_its_time_limit_and_reports_it(folder: Folder) -> None:
    folder.write("a.pt")
    assert folder.collection().report(0.0, seconds=-1.0).is_cut


def test_pattern_is_not_a_regular_expression() -> None:
    assert matches(["a.b+(c)"], ["a.b+(c)"])
    assert not matches(["axb"], ["a.b"])
    assert not matches(["a"], ["a", "b"])
