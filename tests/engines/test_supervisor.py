"""What a supervisor decides, on a backend without processes: crashes, detaching, waiting, and the order of an end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from windlass.engines.keeping import crash
from windlass.engines.keeping.ground import HeldElsewhere, NotNow
from windlass.engines.keeping.keeper import main
from windlass.engines.keeping.recording import Recording
from windlass.engines.keeping.supervisor import MAX_CRASHES, Supervisor
from windlass.engines.keeping.told import Told
from windlass.errors import EngineError, StoreFull
from windlass.plan.plan import Plan
from windlass.runs.record import Phase, Status
from windlass.runs.store import RunWriter, Store
from windlass.runs.wish import Wish, write_wish

POLICY = {
    "timeout_seconds": None, "grace_seconds": 1.0, "hang_seconds": None, "max_restarts": 0, "restart_on": ["failure"],
}  # fmt: skip
GONE = NotNow("LoginFailed", "cannot log in to the cluster: token expired")


class Node(Told):
    """One node; what it tells is put in by the test."""

    def __init__(self, folder: Path) -> None:
        super().__init__(0, (0,), folder)
        self.exit_code = 1
        self.told: list[dict[str, Any]] = []

    def news(self) -> Iterator[dict[str, Any]]:
        for event in self.told:
            if event["kind"] == "end":
                self.ended, self.failures = True, event["failures"]
            yield event
        self.told = []

    def lives(self) -> bool:
        return True

    def send(self, number: signal.Signals) -> None:
        """A signal changes nothing: this node is on a machine that trains on."""

    def sweep(self) -> None:
        """It has no processes."""


class Attempt:
    is_taken_back = False

    def __init__(self, folder: Path, told: list[dict[str, Any]], *, past_deadline: bool = False) -> None:
        self.folder = folder
        self.refusals: list[str] = []
        self.nodes = (Node(folder),)
        self.nodes[0].told = told
        self.is_past_deadline = past_deadline
        self.is_closed = False

    @property
    def over(self) -> bool:
        return self.nodes[0].over

    def live_nodes(self) -> Sequence[Node]:
        return [node for node in self.nodes if not node.over]

    def send(self, number: signal.Signals) -> None:
        """See `Node.send`."""

    def kill(self) -> None:
        """See `Node.send`."""

    def failures(self) -> list[dict[str, Any]]:
        return [failure for node in self.nodes for failure in node.failures]

    def last_sign_of_life(self) -> float:
        return 0.0

    def close(self) -> None:
        self.is_closed = True


class Backend:
    """A target whose nodes outlive the supervisor. `do` is called at each look at its trouble, once a turn."""

    outlives_supervisor = True

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.past_deadline = False
        self.is_lost_to_another = False
        self.alive = False
        self.started: set[Path] = set()
        self.starts: list[EngineError] = []
        """What each start fails with, in order; then it succeeds."""
        self.holds: list[bool | EngineError] = []
        """What is known of the holder at each question, in order; then this supervisor is it."""
        self.finished: list[Phase] = []
        self.attempts: list[Attempt] = []
        self.do: Callable[[], object] = lambda: None

    def hold(self) -> bool:
        answer = self.holds.pop(0) if self.holds else True
        if isinstance(answer, EngineError):
            raise answer
        return answer

    def is_started(self, folder: Path) -> bool:
        return folder in self.started

    def start(self, record: Recording, folder: Path, number: int, members: Sequence[int], wake: int) -> Attempt:
        if self.starts:
            raise self.starts.pop(0)
        self.started.add(folder)
        return self.adopt(folder, number, members, wake)

    def adopt(self, folder: Path, number: int, members: Sequence[int], wake: int) -> Attempt:
        self.attempts.append(Attempt(folder, self.told, past_deadline=self.past_deadline))
        return self.attempts[-1]

    def unplugged(self) -> set[int]:
        return set()

    def trouble(self) -> NotNow | None:
        self.do()
        return None

    def lives(self) -> bool:
        return self.alive

    def clear(self, record: Recording) -> None:
        assert not record.status.phase.is_terminal

    def finish(self, record: Recording, *, is_patient: bool = True) -> None:
        self.finished.append(record.writer.store.status(record.status.id).phase)

    def see_off(self, store: Store) -> None:
        """Nothing is left."""


class Scene:
    """A run with its record and its backend."""

    def __init__(self, home: Path, **policy: Any) -> None:
        self.store = Store(home)
        self.plan = Plan("r-1", "case", "bed", "kubernetes", "out", 1, 1, {**POLICY, **policy}, {}, (), ())
        self.backend = Backend()
        self.writer = self.store.create(
            "r-1", name="case", target="bed", output_dir="out", plan=self.plan.to_text(), time=1000.0, restarts=0
        )
        self.dir = self.store.run_dir("r-1")

    def supervisor(self) -> Supervisor:
        return Supervisor(self.writer, self.plan, self.dir, self.backend)

    def begin(self, at: float | None = None) -> None:
        """An attempt that another supervisor has started."""
        data = {"number": 1, "world_size": 1, "nodes": [[0]], "members": [0], "reason": "first"}
        self.writer.append("attempt", data, at=at)
        self.backend.started.add(self.dir / "attempt-1")

    @property
    def status(self) -> Status:
        return self.store.status("r-1")

    def kinds(self, *wanted: str) -> list[str]:
        return [event.kind for event in self.store.events("r-1") if not wanted or event.kind in wanted]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path / "home")
    yield scene
    scene.writer.close()
    scene.store.close()


def ended(*exit_codes: int, at: float = 2000.0) -> list[dict[str, Any]]:
    """What a node tells whose ranks end so."""
    failures = [
        {"rank": rank, "exit_code": code, "at": at, "tail": "", "traceback_at": None, "ended_by_us": False}
        for rank, code in enumerate(exit_codes) if code
    ]  # fmt: skip
    ranks = [{"kind": "rank", "rank": rank, "exit_code": code, "at": at} for rank, code in enumerate(exit_codes)]
    return [*ranks, {"kind": "end", "failures": failures, "at": at}]


# -- crashes ----------------------------------------------------------------------------------------------------------


def crashes(writer: RunWriter, count: int, at: float | None = None) -> None:
    for _ in range(count):
        writer.append("adopted", {"crash": "KeyError: 'x'"}, at=at)


def test_six_take_ups_of_one_attempt_lose_no_run(scene: Scene) -> None:
    scene.begin()
    for _ in range(6):
        scene.writer.append("adopted")
    assert not scene.supervisor().settle_unseen()
    assert not scene.status.phase.is_terminal


def test_supervisors_that_crashed_again_and_again_lose_a_run_of_which_nothing_lives(scene: Scene) -> None:
    scene.begin()
    crashes(scene.writer, MAX_CRASHES)
    assert scene.supervisor().settle_unseen()
    assert scene.status.phase is Phase.LOST


def test_no_run_is_lost_whose_pods_live(scene: Scene) -> None:
    scene.begin()
    crashes(scene.writer, 2 * MAX_CRASHES)
    scene.backend.alive = True
    assert not scene.supervisor().settle_unseen()
    assert not scene.status.phase.is_terminal


def test_crashes_count_only_without_progress_and_only_for_a_while(scene: Scene) -> None:
    scene.begin()
    crashes(scene.writer, MAX_CRASHES - 1)
    scene.writer.append("progress", {"step": 7})
    crashes(scene.writer, MAX_CRASHES - 1)
    assert not scene.supervisor().settle_unseen()
    scene.writer.append("progress", {"step": 8})
    crashes(scene.writer, MAX_CRASHES, at=5.0)
    assert not scene.supervisor().settle_unseen()


def test_what_is_in_the_log_of_a_supervisor_decides_nothing(scene: Scene) -> None:
    scene.begin()
    (scene.dir / "supervisor.log").write_text(
        "ERROR:root:exec: process returned 1\nTraceback (most recent call last)\n"
    )
    assert not scene.supervisor().settle_unseen()
    assert not scene.status.phase.is_terminal


def test_supervisors_that_got_nothing_done_are_followed_after_a_pause(scene: Scene) -> None:
    scene.begin()
    scene.writer.append("adopted")
    assert scene.supervisor().pause_seconds() == 0
    for _ in range(4):
        scene.writer.append("adopted")
    assert 0 < scene.supervisor().pause_seconds() <= 4
    scene.writer.append("progress", {"step": 7})
    assert scene.supervisor().pause_seconds() == 0


def test_a_crash_marker_is_whole_or_on_a_full_disk_empty(tmp_path: Path) -> None:
    assert crash.read(tmp_path) is None
    crash.mark(tmp_path, KeyError("x"))
    found = crash.read(tmp_path)
    assert found is not None
    assert found.summary == "KeyError: 'x'"
    crash.move_away(tmp_path, 3)
    assert crash.read(tmp_path) is None
    assert "KeyError" in (tmp_path / "supervisor-3.crash").read_text()


@pytest.mark.parametrize(
    ("error", "is_crash"),
    [(KeyError("x"), True), (EngineError("the kubeconfig has no context"), False), (StoreFull("no space left"), False)],
)
def test_only_what_is_no_error_of_its_surroundings_is_a_crash(
    scene: Scene, error: Exception, is_crash: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(_plan: Plan, _run_dir: Path) -> Backend:
        raise error

    argv = [str(scene.store.home), "r-1", str(os.dup(scene.writer.lock))]
    if is_crash:
        with pytest.raises(KeyError):
            main(argv, fails)
    else:
        assert main(argv, fails) == 1
        assert str(error) in capfd.readouterr().err
    assert (crash.read(scene.dir) is not None) == is_crash


# -- detaching --------------------------------------------------------------------------------------------------------


def test_sigterm_leaves_a_run_whose_nodes_outlive_the_machine(scene: Scene) -> None:
    supervisor = scene.supervisor()

    def terminate() -> None:
        if supervisor.terminated:  # a turn later: it must not watch any more
            scene.backend.attempts[0].nodes[0].told = ended(0)
        supervisor.terminated = True
        os.write(supervisor.wake_end, b".")

    scene.backend.do = terminate
    supervisor.run()
    assert supervisor.detached
    assert scene.kinds("attempt", "notice", "attempt-end", "end") == ["attempt"]
    assert not scene.backend.attempts[0].is_closed
    assert scene.status.condition is not None
    assert "no supervisor is attached" in scene.status.condition["message"]
    scene.writer.append("adopted")
    assert scene.status.condition is None


def test_a_supervisor_that_lost_the_run_to_another_writes_nothing_more(scene: Scene) -> None:
    scene.backend.do = lambda: setattr(scene.backend, "is_lost_to_another", True)
    scene.backend.told = []
    supervisor = scene.supervisor()
    supervisor.run()
    assert supervisor.detached
    assert scene.kinds() == ["created", "attempt"]


def test_a_run_that_another_supervisor_holds_is_left_alone(scene: Scene) -> None:
    scene.backend.holds = [HeldElsewhere("the run is supervised by process 7 on there")]
    write_wish(scene.dir, Wish())
    supervisor = scene.supervisor()
    supervisor.run()
    assert supervisor.detached
    assert scene.kinds() == ["created"]


def test_while_the_holder_is_unknown_nothing_is_done(scene: Scene) -> None:
    scene.backend.holds = [False, HeldElsewhere("it lives")]
    scene.supervisor().run()
    assert scene.kinds() == ["created"]
    assert scene.backend.holds == []


# -- a target that cannot be used now ---------------------------------------------------------------------------------


def test_a_login_that_has_expired_is_waited_for_and_noted_once(scene: Scene) -> None:
    scene.backend.starts = [GONE]
    scene.backend.told = ended(0)
    scene.supervisor().run()
    assert scene.status.phase is Phase.SUCCEEDED
    assert scene.kinds("attempt", "condition", "end") == ["attempt", "condition", "condition", "end"]
    noted = [event.data for event in scene.store.events("r-1") if event.kind == "condition"]
    assert [one["type"] for one in noted] == ["LoginFailed", None]
    assert "token expired" in noted[0]["message"]


def test_a_refusal_at_the_start_is_final(scene: Scene) -> None:
    scene.backend.starts = [EngineError("the cluster refused: pods is forbidden")]
    scene.supervisor().run()
    assert (scene.status.phase, scene.status.exit_code) == (Phase.FAILED, 127)


def test_a_target_that_stays_away_is_waited_for_no_longer_than_the_job_may_take(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "home", timeout_seconds=1.0)
    scene.backend.starts = [GONE] * 5
    scene.supervisor().run()
    assert (scene.status.phase, scene.status.exit_code) == (Phase.FAILED, 124)
    scene.writer.close()
    scene.store.close()


def test_a_stop_needs_no_target_before_anything_was_started(scene: Scene) -> None:
    scene.backend.holds = [GONE] * 5
    write_wish(scene.dir, Wish())
    scene.supervisor().run()
    assert scene.status.phase is Phase.STOPPED


def test_an_attempt_that_was_recorded_and_never_started_is_started(scene: Scene) -> None:
    """Its supervisor was killed while it waited for the cluster: the pods were never made."""
    scene.begin()
    scene.backend.started.clear()
    scene.backend.told = ended(0)
    scene.supervisor().run()
    assert scene.status.phase is Phase.SUCCEEDED
    assert scene.kinds("attempt") == ["attempt"]
    assert scene.backend.started == {scene.dir / "attempt-1"}


# -- ends -------------------------------------------------------------------------------------------------------------


def test_the_end_is_recorded_before_the_target_is_cleaned_up(scene: Scene) -> None:
    scene.backend.told = ended(0)
    scene.supervisor().run()
    assert scene.backend.finished == [Phase.SUCCEEDED]


def test_ranks_that_ended_in_time_while_no_supervisor_watched_have_succeeded(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "home", timeout_seconds=100.0)  # the run began at 1000
    scene.begin(at=1001.0)
    scene.backend.told = ended(0, at=1050.0)
    scene.supervisor().run()
    assert scene.status.phase is Phase.SUCCEEDED
    scene.writer.close()
    scene.store.close()


def test_pods_that_their_deadline_ended_are_a_timeout(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "home", timeout_seconds=1e12, max_restarts=3)
    scene.backend.told, scene.backend.past_deadline = ended(-15), True
    scene.supervisor().run()
    assert (scene.status.phase, scene.status.exit_code) == (Phase.FAILED, 124)
    assert scene.status.attempts[-1].reason == "timeout"
    scene.writer.close()
    scene.store.close()
