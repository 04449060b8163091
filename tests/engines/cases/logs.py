"""Output of ranks is stored byte for byte and in order, and progress in it is recognized."""

from __future__ import annotations

import re

import pytest
from tests.engines.harness import Aspect, Can, Case, Harness, differs, needs
from tests.helpers.nightly import IS_NIGHTLY

from windlass.runs.logs import RunLogs
from windlass.runs.phase import Phase

NUM_RANKS = 8
LINES_PER_RANK = 125_000
GAP = re.compile(rb"\[windlass\] ([\d,]+) lines of rank \d+ are missing here: ")


class Logs(Case):
    @pytest.mark.slow
    @needs(Can.EVERY_LINE)
    def test_a_million_lines_of_eight_ranks_are_kept_in_order(self, harness: Harness) -> None:
        per_write = "1" if Can.PROCESSES in harness.way.can else "125"
        run = harness.finish("lines", str(LINES_PER_RANK), per_write, nodes=2, procs_per_node=NUM_RANKS // 2)
        assert run.status.phase is Phase.SUCCEEDED, run.events
        for rank in range(NUM_RANKS):
            expected = b"".join(b"%d line %d of this rank\n" % (rank, number) for number in range(LINES_PER_RANK))
            got = run.raw(rank)
            if got != expected:  # pytest's comparison of long lists in an assertion takes minutes
                assert Can.FILES not in harness.way.can, difference(got.splitlines(), expected.splitlines())
                assert_missing_lines_are_told(got.splitlines(), expected.splitlines())

    @differs(Aspect.OUTPUT)
    @needs(Can.EVERY_LINE)
    def test_merged_log_has_every_line_of_every_rank(self, harness: Harness) -> None:
        per_write = "1" if Can.PROCESSES in harness.way.can else "125"
        # With all lines, this case shares the run of the case above.
        num_lines = LINES_PER_RANK if IS_NIGHTLY else LINES_PER_RANK // 50
        run = harness.finish("lines", str(num_lines), per_write, nodes=2, procs_per_node=NUM_RANKS // 2)
        run.bring_logs()
        of_rank: list[list[bytes]] = [[] for _ in range(NUM_RANKS)]
        time_ns = 0
        for block in RunLogs(run.dir).read_batches():
            assert block.time_ns >= time_ns
            time_ns = block.time_ns
            of_rank[block.rank].append(block.data)
        for rank in range(NUM_RANKS):
            assert b"".join(of_rank[rank]) == run.raw(rank)

    @differs(Aspect.OUTPUT)
    @needs(Can.BYTES)
    def test_output_bytes_are_unchanged(self, harness: Harness) -> None:
        run = harness.finish("odd_bytes")
        assert run.raw() == b"\xff\xfe\x00 not UTF-8\n" + b"x" * 3_000_000 + b"\n\n\r\nno newline at the end"

    @needs(Can.BYTES)
    def test_last_line_without_newline_is_logged(self, harness: Harness) -> None:
        lines = harness.finish("odd_bytes").lines()
        assert [len(line.data) for line in lines] == [13, 3_000_000, 0, 1, 21]
        assert (lines[-1].text, lines[-1].newline) == ("no newline at the end", False)

    @differs(Aspect.PROGRAM)
    @needs(Can.PROGRAMS)
    def test_stdout_and_stderr_share_one_log_in_order(self, harness: Harness) -> None:
        script = "for i in 1 2 3 4 5; do echo out $i; echo err $i >&2; done"
        expected = "".join(f"out {i}\nerr {i}\n" for i in range(1, 6))
        assert harness.finish(command=["sh", "-c", script]).text() == expected

    @differs(Aspect.OUTPUT)
    def test_output_is_readable_while_run_is_active(self, harness: Harness) -> None:
        run = harness.start("sleep", "600").until_ready()
        assert run.status.phase is Phase.TRAINING
        harness.engine.stop(run.id, now=True)
        run.wait()

    @pytest.mark.parametrize("how", ["report", "bar"])
    def test_progress_is_in_status(self, harness: Harness, how: str) -> None:
        run = harness.finish(how, "12")
        progress = run.status.progress
        assert progress.loss == pytest.approx(1 / 12, abs=1e-3)
        assert "progress" in [event.kind for event in run.events]

    @differs(Aspect.OUTPUT)
    def test_reported_values_are_metrics_of_the_run(self, harness: Harness) -> None:
        run = harness.finish("report", "12")
        [loss] = [one for one in harness.engine.metrics(run.id) if (one.name, one.source) == ("loss", "report")]
        assert (loss.rank, loss.attempts, loss.steps) == (0, (1,) * 12, tuple(range(1, 13)))
        assert loss.values == pytest.approx([1 / step for step in range(1, 13)])

    def test_structured_lines_are_hidden_from_output(self, harness: Harness) -> None:
        run = harness.finish("report", "12")
        assert "::windlass" not in run.text()

    def test_phase_times_are_separate_and_sum_to_wall_clock(self, harness: Harness) -> None:
        seconds = harness.way.patience_seconds / 150
        status = harness.finish("phases", str(seconds)).status
        assert status.times.ended_at is not None
        assert sum(status.times.phases.values()) == pytest.approx(
            status.times.ended_at - status.times.created_at, abs=1e-6
        )
        for phase in (Phase.STARTING, Phase.TRAINING, Phase.CHECKPOINTING):
            assert status.times.phases[phase] > 0.3, (
                phase,
                status.times.phases,
            )  # a line is read some time after it was written


def assert_missing_lines_are_told(got: list[bytes], expected: list[bytes]) -> None:
    """Asserts that missing lines are reported with their number: logs that a kubelet rotates may lose some (decision
    0009).
    """
    kept = [line for line in got if not GAP.match(line)]
    num_missing = sum(int(found[1].replace(b",", b"")) for line in got if (found := GAP.match(line)))
    assert len(kept) + num_missing == len(expected), difference(got, expected)
    left = iter(expected)
    is_in_order = all(line in left for line in kept)
    assert is_in_order, difference(got, expected)


def difference(got: list[bytes], expected: list[bytes]) -> str:
    """Describes where two logs differ: the number of missing or additional lines, and the lines around the
    first one.
    """
    at = next((at for at, (one, other) in enumerate(zip(got, expected, strict=False)) if one != other), len(got))
    return f"{len(got)} lines of {len(expected)}; at {at}: {got[at - 1 : at + 3]}, not {expected[at - 1 : at + 3]}"
