"""The report names the files that a script left in its code folder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from windlass.cli.statustext import changed_files_lines
from windlass.plan.compose import NO_NODES
from windlass.plan.plan import NO_PLAN, Plan
from windlass.plan.steps import FolderStep
from windlass.runs.events import CodeFiles
from windlass.runs.phase import Phase
from windlass.runs.record import Files, Status, Times
from windlass.runs.warnings import warnings_after
from windlass.views.code_files import changed_files, pattern_of
from windlass.worker.protocol import CollectSpec

HERE = replace(NO_PLAN, steps=(FolderStep("make /out", "/out", "/checkpoints"),))
PODS = replace(NO_PLAN, engine="kubernetes", nodes=NO_NODES.replace(collect=CollectSpec(("out/**",))))


def report(node: int, *files: tuple[str, int], **more: Any) -> CodeFiles:
    largest = [{"path": path, "bytes": size} for path, size in files]
    size = sum(size for _, size in files)
    data = {"node": node, "folder": "/code", "left": len(files), "left_bytes": size, "largest": largest, **more}
    return CodeFiles.from_json(data)


def lines(reports: list[CodeFiles], plan: Plan) -> list[str]:
    return changed_files_lines(changed_files(reports, plan))


def test_last_line_shows_how_to_keep_the_files() -> None:
    assert lines([report(0, ("out/model.pt", 3 << 20), ("log.txt", 5))], HERE) == [
        "/code: 2 new or changed files, 3.0 MiB",
        "  out/model.pt  3.0 MiB",
        "  log.txt       5 B",
        "They changed while this run trained, and another run may overwrite them.",
        'To keep them with each run: outputs: {collect: ["out/**", "*.txt"]}',
        """Without a job file: --set 'outputs.collect=["out/**", "*.txt"]'""",
    ]


def test_files_in_a_shared_folder_are_counted_once() -> None:
    found = changed_files([report(0, ("a", 1)), report(1, ("a", 1), ("b", 2))], HERE)
    assert found is not None
    assert (found.left, [one.path for one in found.largest]) == (2, ["b", "a"])


def test_files_in_containers_are_summed_over_nodes_and_marked_as_deleted() -> None:
    reports = [report(0, ("a.pt", 1), copied=2, copied_bytes=2048), report(1, ("b.pt", 2), is_cut=True)]
    assert lines(reports, PODS) == [
        "2 files, 2.0 KiB copied to the output",
        "/code: at least 2 new or changed files, 3 B",
        "  b.pt  2 B",
        "  a.pt  1 B",
        "  The list is incomplete: it took more than 2 s.",
        "That folder was deleted with the machines of this run.",
        'To keep them with each run: outputs: {collect: ["out/**", "*.pt"]}',
        """Without a job file: --set 'outputs.collect=["out/**", "*.pt"]'""",
    ]


def test_long_names_are_truncated_at_the_start() -> None:
    _, row, *_ = lines([report(0, ("n" * 200 + "/last.pt", 1))], HERE)
    assert row == f"  …{'n' * 91}/last.pt  1 B"


def test_existing_pattern_is_not_suggested_again() -> None:
    shown = lines([report(0, ("out/a.pt", 1), ("b.txt", 1))], PODS)
    assert shown[-2] == 'To keep them with each run: outputs: {collect: ["out/**", "*.txt"]}'


def test_no_pattern_is_suggested_if_the_job_collects_all_files() -> None:
    plan = replace(PODS, nodes=NO_NODES.replace(collect=CollectSpec(("*.pt",))))
    assert lines([report(1, ("b.pt", 2))], plan)[-1] == "That folder was deleted with the machines of this run."


def test_copies_of_several_nodes_are_reported() -> None:
    reports = [report(0, copied=2, copied_bytes=2048), report(1, copied=2, copied_bytes=2048)]
    assert lines(reports, replace(PODS, nodes=NO_NODES.replace(collect=CollectSpec(("*",))))) == [
        "4 files of 2 nodes, 4.0 KiB copied to the output"
    ]


def test_report_of_the_node_that_looked_last_covers_a_shared_folder() -> None:
    both, first = report(0, ("a.pt", 1), ("b.pt", 2)), report(1, ("b.pt", 2))
    assert lines([first, both], HERE) == lines([both, first], HERE) == lines([both], HERE)


def test_report_is_empty_without_changes_or_reports() -> None:
    assert lines([], HERE) == lines([report(0)], HERE) == lines([], PODS) == []


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("out/a/b.pt", "out/**"),
        ("model.tar.gz", "*.gz"),
        ("LICENSE", "LICENSE"),
        ("a[1]/b", "a[[]1]/**"),
        ("\x1b[2J\u202e\udcff/b", "?[[]2J??/**"),
    ],
)
def test_pattern_matches_similar_files(path: str, pattern: str) -> None:
    assert pattern_of(path) == pattern


def warnings_of(*reports: CodeFiles) -> list[str]:
    found = Status("r", "r", "local", Phase.TRAINING, Times(0.0, 0.0), "/o", files=Files(code_files=reports))
    return [one.message for one in warnings_after(found, reports[-1])]


def test_unmatched_patterns_and_uncopied_files_are_a_warning() -> None:
    assert warnings_of(report(0, has_none=True)) == [
        "no new or changed file of the code folder matches outputs.collect"
    ]
    assert warnings_of(report(0, copied=1), report(1, has_none=True)) == []
    assert warnings_of(report(0, problems=["a: x", "b: y"]), report(1, problems=["a: x"])) == [
        "files of the code folder are not in the output: a: x; and 1 more"
    ]
