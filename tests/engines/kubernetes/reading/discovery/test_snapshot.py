"""`status` and `ps` merge an outdated record with the state of an API server on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import WINDLASS, Call, Result, home, loaded_by, windlass
from tests.cli.test_json import hold
from tests.engines.kubernetes.objectserver import ObjectServer
from tests.helpers.until import until

from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.reading.discovery import snapshot
from windlass.engines.kubernetes.reading.discovery.snapshot import Staleness
from windlass.plan.plan import NO_PLAN
from windlass.plan.steps import ClusterStep, CodeStep
from windlass.runs.events import entry_of
from windlass.runs.phase import Phase
from windlass.runs.store import RunWriter, Store
from windlass.worker import process

__all__ = ["home", "windlass"]

RUN = "digits-7f3k2"
OTHER = "other-7f3k2"
AGO = 600.0
"""Seconds since the record was last written."""


class Recorded:
    """Runs on the cluster in this machine's record, each with a supervisor that writes nothing."""

    def __init__(self, store: Store, kubeconfig: str) -> None:
        self._store = store
        self._kubeconfig = kubeconfig
        self._supervisor = subprocess.Popen(["sleep", "600"])
        self._writers: list[RunWriter] = []

    def run(self, run_id: str, *events: tuple[str, dict[str, Any]], ago: float = AGO) -> RunWriter:
        """Creates a run whose events were all written `ago` seconds before now."""
        cluster = ClusterStep("", "team", "job", context="lab", kubeconfig=self._kubeconfig)
        steps = (cluster, CodeStep("", "d"))
        plan = replace(NO_PLAN, run_id=run_id, engine="kubernetes", num_nodes=1, procs_per_node=1, steps=steps)
        began = time.time() - ago
        writer = self._store.create(
            run_id,
            name="digits",
            target="lab",
            output_dir="/windlass/results/output",
            plan=plan.to_text(),
            time=began,
        )
        self._writers.append(writer)
        alive = process.stat(self._supervisor.pid)
        assert alive is not None
        who = f"{self._supervisor.pid} {alive.start_ticks} {process.boot_id()}"
        (self._store.run_dir(run_id) / "supervisor.pid").write_text(who)
        for kind, data in events:
            writer.append(entry_of(kind, data), at=began)
        return writer

    def close(self) -> None:
        for writer in self._writers:
            if not writer.status.phase.is_terminal:
                writer.append(entry_of("end", {"phase": "stopped"}))
            writer.close()
        self._supervisor.kill()
        self._supervisor.wait()


@pytest.fixture
def recorded(home: Path, server: ObjectServer, tmp_path: Path) -> Iterator[Recorded]:
    with Store(home) as store, closing(Recorded(store, server.kubeconfig(tmp_path / "kube"))) as runs:
        yield runs


ATTEMPT = ("attempt", {"number": 1, "world_size": 1, "nodes": [[0]], "members": [0], "reason": None})
TRAINS = (ATTEMPT, ("phase", {"phase": "training"}))
LOST = (*TRAINS, ("end", {"phase": "lost"}))


def shown(windlass: Call, run: str = RUN) -> Any:
    found = windlass("status", run, "-o", "json").json
    hold("status", found)
    return found


def test_record_confirmed_by_the_cluster_is_current(windlass: Call, recorded: Recorded, server: ObjectServer) -> None:
    recorded.run(RUN, *TRAINS)
    server.owner_config_map(RUN)
    server.job(RUN, "Running")
    server.pod(RUN, "Running")
    found = shown(windlass)
    assert (found["phase"], found["stale"], found["as_of"]) == ("training", None, None)
    assert "as of" not in windlass("status", RUN).out


def test_fresh_record_needs_no_query(windlass: Call, recorded: Recorded, server: ObjectServer) -> None:
    recorded.run(RUN, *TRAINS, ago=0.0)
    assert (shown(windlass)["stale"], server.requests) == (None, [])


def succeeds(server: ObjectServer) -> None:
    server.job(RUN, "Complete")
    server.pod(RUN, "Completed")


def fails(server: ObjectServer) -> None:
    server.job(RUN, "Failed")
    server.pod(RUN, "Error")


def waits(server: ObjectServer) -> None:
    server.job(RUN, "Running")
    server.pod(RUN, "Pending")


def pulls(server: ObjectServer) -> None:
    server.job(RUN, "Running")
    server.pod(RUN, "ImagePullBackOff")


def was_deleted(server: ObjectServer) -> None:
    """Only the owner ConfigMap exists any more."""


def was_stopped(server: ObjectServer) -> None:
    server.marker(RUN, "stop")


def ended_badly(server: ObjectServer) -> None:
    server.marker(RUN, "end", {layout.HOW_LABEL: "badly"})


@pytest.mark.parametrize(
    ("happens", "phase"),
    [
        (succeeds, "succeeded"),
        (fails, "restarting"),
        (waits, "queued"),
        (pulls, "pulling"),
        (was_deleted, "restarting"),
        (was_stopped, "stopped"),
        (ended_badly, "failed"),
    ],
)
def test_changes_since_the_last_record_are_shown(
    windlass: Call, recorded: Recorded, server: ObjectServer, happens: Callable[[ObjectServer], None], phase: str
) -> None:
    recorded.run(RUN, *TRAINS)
    server.owner_config_map(RUN)
    happens(server)
    found = shown(windlass)
    assert (found["phase"], found["stale"]) == (phase, snapshot.BEHIND)
    assert abs(found["as_of"] - (time.time() - AGO)) < 60
    wall = sum(found["phases"].values())
    assert wall == pytest.approx(
        found["as_of"] - found["created_at"] if phase in ("succeeded", "stopped", "failed") else AGO, abs=60
    )
    [one] = windlass("ps", "-o", "json").json
    hold("ps", [one])
    assert (one["phase"], one["stale"]) == (phase, snapshot.BEHIND)
    text = windlass("status", RUN)
    assert (phase in text.out.splitlines()[0], "as of" in text.out) == (True, True)


def test_run_with_removed_objects_is_stopping(windlass: Call, recorded: Recorded, server: ObjectServer) -> None:
    recorded.run(RUN, *TRAINS)
    found = shown(windlass)
    assert (found["phase"], found["waits_for"]) == ("stopping", snapshot.REMOVED)


@pytest.mark.parametrize("reported", [(), (("condition", {"type": None, "message": ""}),)], ids=["nothing", "some"])
def test_record_of_a_just_restarted_supervisor_is_checked(
    windlass: Call, recorded: Recorded, server: ObjectServer, reported: tuple[tuple[str, dict[str, Any]], ...]
) -> None:
    writer = recorded.run(RUN, *TRAINS, ago=1.0)
    for event in (("adopted", {}), *reported):
        writer.append(entry_of(*event))
    server.owner_config_map(RUN)
    succeeds(server)
    assert (shown(windlass)["phase"], shown(windlass)["stale"]) == ("succeeded", snapshot.BEHIND)


@pytest.mark.parametrize(
    "event",
    [
        ("condition", {"type": "ClusterUnreachable", "message": "the API server does not answer"}),
        ("condition", {"type": "NotObserved", "message": "watch of pods: fails; the pods continue to train"}),
    ],
)
def test_failed_reads_of_a_supervisor_do_not_make_the_record_current(
    windlass: Call, recorded: Recorded, server: ObjectServer, event: tuple[str, dict[str, Any]]
) -> None:
    recorded.run(RUN, *TRAINS).append(entry_of(*event))
    server.stop()
    found = shown(windlass)
    assert "does not answer" in found["stale"]
    assert abs(found["as_of"] - (time.time() - AGO)) < 60


@pytest.mark.parametrize("phase", ["starting", "checkpointing"])
def test_running_pods_do_not_override_a_recorded_phase(
    windlass: Call, recorded: Recorded, server: ObjectServer, phase: str
) -> None:
    recorded.run(RUN, ATTEMPT, ("phase", {"phase": phase}))
    server.owner_config_map(RUN)
    server.job(RUN, "Running")
    server.pod(RUN, "Running")
    assert (shown(windlass)["phase"], shown(windlass)["stale"]) == (phase, None)


def test_objects_of_ended_attempt_do_not_change_the_phase(
    windlass: Call, recorded: Recorded, server: ObjectServer
) -> None:
    recorded.run(RUN, *TRAINS, ("attempt-end", {"phase": "failed", "reason": "failure"}))
    server.owner_config_map(RUN)
    fails(server)
    assert (shown(windlass)["phase"], shown(windlass)["stale"]) == ("restarting", None)


def test_objects_of_attempts_do_not_change_the_phase_during_transfers(
    windlass: Call, recorded: Recorded, server: ObjectServer
) -> None:
    recorded.run(RUN, ("phase", {"phase": "staging"}))
    server.owner_config_map(RUN)
    assert (shown(windlass)["phase"], shown(windlass)["stale"]) == ("staging", None)
    recorded.run(OTHER, ATTEMPT, ("ending", {"phase": "succeeded", "exit_code": 0}))
    server.owner_config_map(OTHER)
    server.job(OTHER, "Complete", "1/1")
    assert (shown(windlass, OTHER)["phase"], shown(windlass, OTHER)["stale"]) == ("uploading", None)


# -- no answer --------------------------------------------------------------------------------------------------------


def refuses(server: ObjectServer) -> None:
    server.stop()


def is_silent(server: ObjectServer) -> None:
    server.is_silent = True


def forbids(server: ObjectServer) -> None:
    server.forbidden.add("pods")


@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        (refuses, "cluster lab does not answer: "),
        (is_silent, "cluster lab does not answer within 3 s"),
        (forbids, "cluster lab cannot be asked: "),
    ],
)
def test_outdated_state_is_dated_if_the_cluster_does_not_respond(
    windlass: Call, recorded: Recorded, server: ObjectServer, breaks: Callable[[ObjectServer], None], said: str
) -> None:
    recorded.run(RUN, *TRAINS)
    recorded.run(OTHER, *TRAINS)
    breaks(server)
    found = shown(windlass)
    assert (found["phase"], found["stale"].startswith(said)) == ("training", True), found["stale"]
    assert abs(found["as_of"] - (time.time() - AGO)) < 60
    if server.is_silent:  # Each query takes 3 s.
        return
    listed = windlass("ps")
    date = r"(\d{4}-\d\d-\d\d )?"  # The date is printed if midnight lies in between.
    hour = time.strftime("%H:", time.localtime(found["as_of"]))
    assert re.search(f"the states of 2 runs are as of {date}{hour}", listed.err), listed.err
    assert all(name in listed.err for name in (said, RUN, OTHER))
    assert "AS OF" in listed.out
    assert "10m0" in listed.out, listed.out
    assert [one["stale"][: len(said)] for one in windlass("ps", "-o", "json").json] == [said, said]


def test_outdated_state_is_dated_if_the_context_is_missing(windlass: Call, recorded: Recorded, tmp_path: Path) -> None:
    recorded.run(RUN, *TRAINS)
    (tmp_path / "kube" / "kubeconfig").unlink()
    assert "cluster lab cannot be asked: " in shown(windlass)["stale"]


# -- lost -------------------------------------------------------------------------------------------------------------


def test_a_run_recorded_as_lost_is_not_lost_while_its_pods_run(
    windlass: Call, recorded: Recorded, server: ObjectServer
) -> None:
    recorded.run(RUN, *LOST)
    server.owner_config_map(RUN)
    server.marker(RUN, "end", {layout.HOW_LABEL: "badly"})
    server.job(RUN, "Running")
    server.pod(RUN, "Running")
    found = shown(windlass)
    assert (found["phase"], found["stale"], found["ended_at"]) == ("training", snapshot.RECORDED_LOST, None)
    assert windlass("ps", "-o", "json").json[0]["phase"] == "training"
    assert windlass("status", RUN, "--exit-code").code == 101

    succeeds(server)
    assert shown(windlass)["phase"] == "succeeded"
    assert windlass("status", RUN, "--exit-code").code == 0


@pytest.mark.parametrize("left", [True, False])
def test_lost_run_without_running_pods_stays_lost(
    windlass: Call, recorded: Recorded, server: ObjectServer, left: bool
) -> None:
    recorded.run(RUN, *LOST)
    if left:
        server.owner_config_map(RUN)
        ended_badly(server)
    assert (shown(windlass)["phase"], shown(windlass)["stale"]) == ("lost", None)


def test_list_does_not_query_a_run_lost_long_ago(windlass: Call, recorded: Recorded, server: ObjectServer) -> None:
    recorded.run(RUN, *LOST, ago=10 * 86400.0)
    assert windlass("ps", "-o", "json").json[0]["stale"] is None
    assert server.requests == []
    assert shown(windlass)["phase"] == "lost"
    assert server.requests


def test_lost_run_is_uncertain_if_its_cluster_does_not_respond(
    windlass: Call, recorded: Recorded, server: ObjectServer
) -> None:
    recorded.run(RUN, *LOST)
    server.stop()
    found = shown(windlass)
    assert (found["phase"], "does not answer" in found["stale"]) == ("lost", True)


# -- following --------------------------------------------------------------------------------------------------------


def test_follower_of_a_run_sees_cluster_outage_and_recovery(
    home: Path, recorded: Recorded, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = recorded.run(RUN, *TRAINS)

    class Eager(Staleness):
        again_seconds = 0.02

    with Store(home) as store:
        staleness = Eager(store)
        assert staleness.of(writer.status) == ""
        server.stop()
        until(lambda: "cluster lab does not answer" in staleness.of(writer.status))
        assert "; the state is as of " in staleness.of(writer.status)
        server.start()
        until(lambda: staleness.of(writer.status) == "")


@contextlib.contextmanager
def following(*words: str) -> Iterator[Any]:
    """Starts a command that runs until it is stopped, and yields its output as a file object; the command is killed at
    the end.
    """
    command = subprocess.Popen([*WINDLASS, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield command
    finally:
        command.kill()
        command.communicate()


def test_status_watch_reports_unreachable_cluster(home: Path, recorded: Recorded, server: ObjectServer) -> None:
    writer = recorded.run(RUN, *TRAINS)
    server.stop()
    with following("status", "-w", RUN) as command:
        assert "cluster lab does not answer" in next(line for line in command.stdout if "does not answer" in line)
        writer.append(entry_of("end", {"phase": Phase.STOPPED.value}))
        assert command.wait(100) == 0


@pytest.mark.slow
def test_ps_watch_reports_since_when_the_cluster_is_unreachable(
    home: Path, server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", server.kubeconfig(tmp_path / "kube"))
    Path("targets.yaml").write_text(json.dumps({"lab": {"kind": "kubernetes", "context": "lab", "namespace": "team"}}))
    server.owner_config_map(RUN)
    with following("ps", "--on", "lab", "--watch", "-o", "json") as command:
        assert json.loads(command.stdout.readline())["id"] == RUN
        server.stop()
        away = json.loads(command.stdout.readline())
        hold("ps", away)
        assert (away["target"], away["runs"], away["stale"] is not None) == ("lab", 1, True)
        server.start()
        back = json.loads(command.stdout.readline())
        hold("ps", back)
        assert (back["target"], back["stale"]) == ("lab", None)


def test_ps_on_unreachable_cluster_is_an_error(
    windlass: Call, recorded: Recorded, server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", server.kubeconfig(tmp_path / "kube"))
    Path("targets.yaml").write_text(json.dumps({"lab": {"kind": "kubernetes", "context": "lab", "namespace": "team"}}))
    recorded.run(RUN, *TRAINS)
    server.stop()
    listed = windlass("ps", "--on", "lab")
    assert (listed.code, listed.out) == (1, "")
    assert "cluster lab does not answer: " in listed.err
    assert "the last known states of the unfinished runs there of which this machine has a record (1)" in listed.err


@pytest.mark.parametrize("words", [("ls",), ("rm", "set:5f"), ("stage", "s3://bucket/set")])
def test_data_of_a_target_without_claim_is_in_the_default_claim(
    windlass: Call, server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("KUBECONFIG", server.kubeconfig(tmp_path / "kube"))
    Path("targets.yaml").write_text(json.dumps({"lab": {"kind": "kubernetes", "context": "lab", "namespace": "team"}}))
    listed = windlass("data", *words, "--on", "lab")
    assert (listed.code, "there is no claim windlass-data" in listed.err) == (2, True), listed.err
    assert "--claim another" in listed.err


def test_hint_names_ps_on_a_cluster_that_was_never_listed(windlass: Call, recorded: Recorded) -> None:
    targets = {"lab": {"kind": "kubernetes", "context": "lab"}, "here": {"kind": "local"}}
    Path("targets.yaml").write_text(json.dumps(targets))
    said = "no run on lab is shown; windlass ps --on lab lists those there"
    assert said in windlass("ps").err
    assert said not in windlass("ps", "-q").err + windlass("ps", "-o", "json").err
    recorded.run(RUN, *TRAINS)
    assert said not in windlass("ps").err


def test_ps_on_a_cluster_imports_no_spec_plan_or_supervisor_modules(
    home: Path, server: ObjectServer, tmp_path: Path
) -> None:
    Path("targets.yaml").write_text("lab: {kind: kubernetes, context: lab, namespace: team}")
    server.owner_config_map(RUN)
    environ = {**os.environ, "KUBECONFIG": server.kubeconfig(tmp_path / "kube")}
    loaded = loaded_by("ps", "--on", "lab", environ=environ)
    assert "windlass.cli.listtext" in loaded, "nothing was listed"
    packages = {module.partition(".")[0] for module in loaded}
    assert not packages & {"pydantic", "pydantic_core", "rich", "subprocess", "tempfile"}
    ours = {module for module in loaded if module.startswith(("windlass.supervise", "windlass.plan", "windlass.code"))}
    assert not ours
    assert "windlass.engines.kubernetes.engine" not in loaded


def test_ps_on_a_cluster_shows_the_true_phase_of_runs_of_this_machine(
    windlass: Call, recorded: Recorded, server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", server.kubeconfig(tmp_path / "kube"))
    Path("targets.yaml").write_text(json.dumps({"lab": {"kind": "kubernetes", "context": "lab", "namespace": "team"}}))
    recorded.run(RUN, *TRAINS)
    server.owner_config_map(RUN)
    succeeds(server)
    found: Result = windlass("ps", "--on", "lab", "-o", "json")
    assert [(one["kept"], one["phase"]) for one in found.json] == [("here", "succeeded")]
