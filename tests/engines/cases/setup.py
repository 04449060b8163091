"""`setup` runs once on each machine before its ranks.

These cases are not part of `Contract`, whose page lists the cases that every way passes. Reused pods are tested in
`tests/worker/test_pod_reuse.py`.
"""

from __future__ import annotations

from tests.engines.harness import Aspect, Can, Case, Harness, differs, needs

from windlass.runs.phase import Phase

FAILS_ONCE = """
if [ "$WINDLASS_ATTEMPT" = 1 ]; then echo no such package; exit 3; fi
echo setting up
touch "$WINDLASS_OUTPUT_DIR/made"
"""
SHOW = ["sh", "-c", 'test -e "$WINDLASS_OUTPUT_DIR/made" && echo rank "$WINDLASS_RANK"']


class Setup(Case):
    """Cases for every way. Nodes on this machine share one setup; each pod or host has its own."""

    @needs(Can.PROGRAMS)
    @differs(Aspect.START)
    def test_setup_runs_once_on_each_machine_and_its_failure_is_root_cause(self, harness: Harness) -> None:
        run = harness.finish(command=SHOW, setup=FAILS_ONCE, nodes=2, procs_per_node=2, restarts=1)
        assert [attempt.phase for attempt in run.status.attempts] == [Phase.FAILED, Phase.SUCCEEDED], run.text()
        cause = next(event.data for event in run.events if event.kind == "cause")
        assert (cause["exit_code"], "setup failed with exit code 3" in cause["summary"]) == (3, True)
        assert {line.text for line in run.lines(attempt=1)} == {"no such package"}
        logs = [[line.text for line in run.lines(attempt=2, ranks=[rank])] for rank in range(4)]
        assert [lines[-1] for lines in logs] == [f"rank {rank}" for rank in range(4)]
        num_machines = 1 if Can.FILES in harness.way.can else 2
        assert [line for lines in logs for line in lines[:-1]] == ["setting up"] * num_machines


class StoppedSetup(Setup):
    """Cases for ways in which a stop ends nodes as in other ways."""

    @needs(Can.PROGRAMS)
    @differs(Aspect.SIGNALS)
    def test_a_stop_during_setup_ends_it(self, harness: Harness) -> None:
        run = harness.start(command=SHOW, setup="trap 'echo saved; exit' TERM; echo ready; sleep 300 & wait")
        run.until(lambda run: "ready" in run.text())
        harness.engine.stop(run.id)
        assert (run.wait().phase, "rank" in run.text()) == (Phase.STOPPED, False)
        phases = [event.data["phase"] for event in run.events if event.kind == "phase"]
        assert Phase.TRAINING not in phases  # no rank has written anything
