"""What is said of the files that a script leaves in its own folder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from windlass.cli.statustext import changed_files_lines
from windlass.plan.compose import NO_NODES
from windlass.plan.plan import NO_PLAN, Plan
from windlass.runs.events import CodeFiles
from windlass.runs.phase import Phase
from windlass.runs.record import Files, Status, Times
from windlass.runs.warnings import warnings_after
from windlass.views.code_files import changed_files, pattern_of
from windlass.worker.protocol import CollectSpec

HERE = replace(NO_PLAN, engine="local")
PODS = replace(NO_PLAN, engine="kubernetes", nodes=NO_NODES.replace(collect=CollectSpec(("out/**",))))


def report(node: int, *files: tuple[str, int], **more: Any) -> CodeFiles:
    largest = [{"path": path, "bytes": size} for path, size in files]
    size = sum(size for _, size in files)
    data = {"node": node, "folder": "/code", "left": len(files), "left_bytes": size, "largest": largest, **more}
    return CodeFiles.from_json(data)


def lines(reports: list[CodeFiles], plan: Plan) -> list[str]:
    return changed_files_lines(changed_files(reports, plan))


def test_the_last_line_says_what_keeps_the_files_of_an_unchanged_script() -> None:
    assert lines([report(0, ("out/model.pt", 3 << 20), ("log.txt", 5))], HERE) == [
        "/code: 2 new or changed files, 3.0 MiB",
        "  out/model.pt  3.0 MiB",
        "  log.txt       5 B",
        "They changed while this run trained, and another run may overwrite them.",
        'To keep them with each run: outputs: {collect: ["out/**", "*.txt"]}',
        """Without a job file: --set 'outputs.collect=["out/**", "*.txt"]'""",
    ]


def test_nodes_that_share_the_folder_have_seen_the_same_files() -> None:
    found = changed_files([report(0, ("a", 1)), report(1, ("a", 1), ("b", 2))], HERE)
    assert found is not None
    assert (found.left, [one.path for one in found.largest]) == (2, ["b", "a"])


def test_files_of_containers_are_those_of_all_nodes_and_are_deleted() -> None:
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


def test_of_a_long_name_the_end_is_shown() -> None:
    _, row, *_ = lines([report(0, ("n" * 200 + "/last.pt", 1))], HERE)
    assert row == f"  …{'n' * 91}/last.pt  1 B"


def test_a_pattern_that_the_job_has_is_not_proposed_again() -> None:
    shown = lines([report(0, ("out/a.pt", 1), ("b.txt", 1))], PODS)
    assert shown[-2] == 'To keep them with each run: outputs: {collect: ["out/**", "*.txt"]}'


def test_where_the_job_names_all_files_no_pattern_is_proposed() -> None:
    plan = replace(PODS, nodes=NO_NODES.replace(collect=CollectSpec(("*.pt",))))
    assert lines([report(1, ("b.pt", 2))], plan)[-1] == "That folder was deleted with the machines of this run."


def test_copies_of_several_nodes_are_said_to_be_so() -> None:
    reports = [report(0, copied=2, copied_bytes=2048), report(1, copied=2, copied_bytes=2048)]
    assert lines(reports, replace(PODS, nodes=NO_NODES.replace(collect=CollectSpec(("*",))))) == [
        "4 files of 2 nodes, 4.0 KiB copied to the output"
    ]


def test_nothing_is_said_where_nothing_has_changed_or_nothing_is_known() -> None:
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
def test_a_pattern_keeps_a_file_and_its_like(path: str, pattern: str) -> None:
    assert pattern_of(path) == pattern


def warnings_of(*reports: CodeFiles) -> list[str]:
    found = Status("r", "r", "local", Phase.TRAINING, Times(0.0, 0.0), "/o", files=Files(code_files=reports))
    return [one.message for one in warnings_after(found, reports[-1])]


def test_patterns_that_match_on_no_node_and_files_that_are_not_copied_are_a_warning() -> None:
    assert warnings_of(report(0, has_none=True)) == [
        "no new or changed file of the code folder matches outputs.collect"
    ]
    assert warnings_of(report(0, copied=1), report(1, has_none=True)) == []
    assert warnings_of(report(0, problems=["a: x", "b: y"]), report(1, problems=["a: x"])) == [
        "files of the code folder are not in the output: a: x; and 1 more"
    ]
