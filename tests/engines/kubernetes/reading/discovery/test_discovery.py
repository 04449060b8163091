"""Runs that another machine started are derived from the table rows of their objects."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer

from windlass.engines.kubernetes.access.errors import Unreachable
from windlass.engines.kubernetes.engine import KubernetesEngine
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.reading.discovery.discovery import find, progress_in
from windlass.engines.kubernetes.reading.discovery.object_lists import JOBS, OWNER_CONFIG_MAPS, PODS, ObjectLists
from windlass.engines.kubernetes.reading.discovery.phase import GONE, UNSAID, Seen
from windlass.engines.kubernetes.target import ClusterRuns
from windlass.errors import NoSuchRun, UsageError
from windlass.runs.context import Context
from windlass.runs.phase import Phase
from windlass.runs.store import Store
from windlass.spec.address import ClusterAddress

RUN = "digits-7f3k2"
BEGAN = "2026-11-21T15:00:00Z"
BEGAN_AT = 1795273200.0


def page(table: Any, rows: Sequence[Sequence[str]], columns: Sequence[str] = ()) -> dict[str, Any]:
    names = columns or table.columns
    return {
        "metadata": {"resourceVersion": "7"},
        "columnDefinitions": [{"name": name} for name in names],
        "rows": [{"cells": list(row), "object": None} for row in rows],
    }


def owner_config_maps(*ids: str, markers: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    found = page(OWNER_CONFIG_MAPS, [])
    names: list[tuple[str, str, dict[str, str]]] = [(run, run, {}) for run in ids]
    names += [(layout.marker_name(run, marker), run, {layout.MARKER_LABEL: marker}) for run, marker in markers]
    for name, run, more in names:
        labels = {layout.RUN_LABEL: run, layout.JOB_LABEL: "digits", **more}
        found["rows"].append(
            {
                "cells": [name],
                "object": {"metadata": {"name": name, "labels": labels, "creationTimestamp": BEGAN}},
            }
        )
    return found


def seen(
    *pods: tuple[str, str], jobs: Sequence[Sequence[str]] = (), markers: Sequence[str] = (), age: float = 600.0
) -> Seen:
    lists = ObjectLists("team-a")
    lists.fill(OWNER_CONFIG_MAPS, [owner_config_maps(RUN, markers=[(RUN, marker) for marker in markers])])
    lists.fill(JOBS, [page(JOBS, jobs)])
    lists.fill(PODS, [page(PODS, [(name, "1/1" if word == "Running" else "0/1", word) for name, word in pods])])
    [one] = lists.runs(BEGAN_AT + age)
    return one


TWO = [(f"{RUN}-1", "Running", "0/2")]


@pytest.mark.parametrize(
    ("words", "job", "markers", "phase"),
    [
        (("Running", "Running"), "Running", [], Phase.TRAINING),
        (("Running", "Pending"), "Running", [], Phase.QUEUED),
        (("Running",), "Running", [], Phase.QUEUED),
        ((), "Suspended", [], Phase.QUEUED),
        (("Running", "ContainerCreating"), "Running", [], Phase.PULLING),
        (("Running", "ImagePullBackOff"), "Running", [], Phase.PULLING),
        (("Completed", "Running"), "Running", [], Phase.TRAINING),
        (("Completed", "Completed"), "Complete", [], Phase.SUCCEEDED),
        (("Completed", "Completed"), "", [], Phase.SUCCEEDED),
        (("Error", "Completed"), "Failed", [], Phase.RESTARTING),
        (("Error", "Completed"), "Failed", ["end"], Phase.FAILED),
        (("OOMKilled", "Error"), "", ["end"], Phase.FAILED),
        (("Running", "Terminating"), "Running", ["stop"], Phase.STOPPING),
        (("Error", "Error"), "Failed", ["stop"], Phase.STOPPED),
        ((), "", ["stop"], Phase.STOPPED),
    ],
)
def test_phase_is_derived_from_job_pods_and_markers(
    words: Sequence[str], job: str, markers: Sequence[str], phase: Phase
) -> None:
    pods = [(f"{RUN}-1-{place}-abcde", word) for place, word in enumerate(words)]
    jobs = [(f"{RUN}-1", job, "0/2")] if job else []
    assert seen(*pods, jobs=jobs, markers=markers).phase is phase


def test_run_with_owner_config_map_alone_is_queued_or_lost() -> None:
    assert seen(age=5).phase is Phase.QUEUED
    lost = seen(age=600)
    assert (lost.phase, lost.waits_for) == (Phase.LOST, GONE)


def test_the_newest_attempt_is_shown_and_pods_are_counted() -> None:
    one = seen(
        (f"{RUN}-1-0-abcde", "Error"),
        (f"{RUN}-2-0-abcde", "Running"),
        (f"{RUN}-2-1-abcde", "Running"),
        jobs=[(f"{RUN}-1", "Failed", "0/2"), (f"{RUN}-2", "Running", "0/3")],
    )
    assert (one.attempt, one.pods_ready, one.pods_total, one.phase) == (2, 2, 3, Phase.QUEUED)
    assert (one.id, one.objects.name, one.namespace, one.objects.created_at) == (RUN, "digits", "team-a", BEGAN_AT)


def test_attempt_in_reused_pods_has_its_own_number() -> None:
    one = seen((f"{RUN}-1-0-abcde", "Running"), jobs=[(f"{RUN}-1", "Running", "0/1")])
    assert [_attempt(one, attempts) for attempts in (None, 1, 2)] == [1, 1, 2]


def _attempt(one: Seen, attempts: int | None) -> int:
    summary = None if attempts is None else {"phase": "training", "attempts": attempts}
    placement = replace(one, objects=replace(one.objects, summary=summary)).state("lab").placement
    assert placement is not None
    return placement.attempt


def test_pods_of_a_jobset_belong_to_its_run() -> None:
    one = seen((f"{RUN}-1-n-0-0-abcde", "Running"), jobs=[(f"{RUN}-1-n-0", "Running", "0/1")])
    assert (one.attempt, one.pods_ready, one.phase) == (1, 1, Phase.TRAINING)


def test_reason_of_waiting_pods_is_reported() -> None:
    assert seen((f"{RUN}-1-0-a", "ErrImagePull"), jobs=TWO[:1]).waits_for == "ErrImagePull"
    assert seen(jobs=[(f"{RUN}-1", "Suspended", "0/2")]).waits_for == "Suspended"
    assert seen((f"{RUN}-1-0-a", "Error"), jobs=[(f"{RUN}-1", "Failed", "0/2")]).waits_for == UNSAID


@pytest.mark.parametrize(
    ("words", "waits"),
    [
        (("CrashLoopBackOff",), "its supervisor: CrashLoopBackOff"),
        (("OOMKilled",), "its supervisor: OOMKilled"),
        (("Error", "ErrImagePull"), "its supervisor: ErrImagePull"),
        (("Error", "ImagePullBackOff"), "its supervisor: ErrImagePull"),
        (("Error", "Running"), None),
        (("Pending",), None),
        (("ContainerCreating",), None),
        (("Completed",), None),
    ],
)
def test_crashing_or_stuck_supervisor_is_reported(words: tuple[str, ...], waits: str | None) -> None:
    pods = [(f"{RUN}-supervisor-x{at}", word) for at, word in enumerate(words)]
    found = seen(*pods, (f"{RUN}-1-0-x", "Running"), jobs=[(f"{RUN}-1", "Running", "0/1")])
    assert found.pods_total == 1
    assert found.state("lab").status.waits_for == waits


def test_columns_are_found_by_name_and_may_be_missing() -> None:
    lists = ObjectLists("team-a")
    lists.fill(OWNER_CONFIG_MAPS, [owner_config_maps(RUN)])
    lists.fill(JOBS, [page(JOBS, [("0/2", f"{RUN}-1", "5s")], columns=("Completions", "Name", "Age"))])
    lists.fill(PODS, [page(PODS, [(f"{RUN}-1-0-a", "Running", "1/1")], columns=("Name", "Status", "Ready"))])
    [one] = lists.runs(BEGAN_AT)
    assert (one.pods_ready, one.pods_total) == (1, 2)


def test_objects_without_owner_config_map_belong_to_no_run() -> None:
    lists = ObjectLists("team-a")
    lists.fill(OWNER_CONFIG_MAPS, [owner_config_maps("other-7f3k2", markers=[(RUN, "stop")])])
    lists.fill(JOBS, [page(JOBS, TWO)])
    lists.fill(PODS, [page(PODS, [(f"{RUN}-1-0-abcde", "1/1", "Running")])])
    assert [one.id for one in lists.runs(BEGAN_AT)] == ["other-7f3k2"]


def test_pages_are_joined_and_replaced_by_a_new_list() -> None:
    lists = ObjectLists("team-a")
    lists.fill(OWNER_CONFIG_MAPS, [owner_config_maps(RUN), owner_config_maps("other-7f3k2")])
    assert len(lists.runs(BEGAN_AT)) == 2
    lists.fill(OWNER_CONFIG_MAPS, [owner_config_maps(RUN)])
    assert lists.versions["ConfigMap"] == "7"
    assert [one.id for one in lists.runs(BEGAN_AT)] == [RUN]


def test_only_first_watch_event_has_columns() -> None:
    lists = ObjectLists("team-a")
    lists.fill(OWNER_CONFIG_MAPS, [owner_config_maps(RUN)])
    lists.fill(JOBS, [page(JOBS, TWO)])
    lists.fill(PODS, [page(PODS, [(f"{RUN}-1-0-a", "0/1", "Pending"), (f"{RUN}-1-1-b", "1/1", "Running")])])
    change = {**page(PODS, [(f"{RUN}-1-0-a", "1/1", "Running")]), "columnDefinitions": None}
    lists.change(PODS, "MODIFIED", change)
    assert lists.runs(BEGAN_AT)[0].phase is Phase.TRAINING
    lists.change(PODS, "DELETED", change)
    assert lists.runs(BEGAN_AT)[0].pods_ready == 1


def test_bookmark_updates_only_version_and_lists_can_be_replaced() -> None:
    lists, fresh = ObjectLists("team-a"), ObjectLists("team-a")
    lists.fill(OWNER_CONFIG_MAPS, [owner_config_maps(RUN)])
    empty = {"metadata": {"resourceVersion": "9"}, "rows": [{"cells": [""], "object": None}]}
    lists.change(OWNER_CONFIG_MAPS, "BOOKMARK", empty)
    assert (lists.versions["ConfigMap"], len(lists.runs(BEGAN_AT))) == ("9", 1)
    fresh.fill(OWNER_CONFIG_MAPS, [owner_config_maps("other-7f3k2")])
    lists.take(OWNER_CONFIG_MAPS, fresh)
    assert [one.id for one in lists.runs(BEGAN_AT)] == ["other-7f3k2"]


def test_newest_progress_is_found_among_rank_output() -> None:
    lines = [
        b'2026-11-21T15:00:01Z [n] {"kind": "progress", "at": 1.0, "progress": {"step": 1, "total": 9}}',
        b"2026-11-21T15:00:01Z [0] progress",
        b'2026-11-21T15:00:02Z [n] {"kind": "progress", "at": 2.0, "progress": {"step": 2}}',
        b'2026-11-21T15:00:02Z [n] {"kind": "progress", "at": 3.0',
        b'2026-11-21T15:00:03Z [0] a rank may say [n] {"progress": 7}',
    ]
    assert progress_in(lines) == {"step": 2, "total": 9, "at": 2.0}
    assert progress_in([b"2026-11-21T15:00:01Z [0] hi"]) == {}


def test_one_run_is_selected_by_its_label() -> None:
    assert PODS.selector(RUN) == f"app.kubernetes.io/managed-by=windlass,windlass.dev/run={RUN}"
    assert OWNER_CONFIG_MAPS.selector().endswith("windlass.dev/run,!windlass.dev/attempt,!windlass.dev/code")


def test_run_on_a_cluster_is_found_by_prefix_like_a_local_one(tmp_path: Path) -> None:
    with closing(ObjectServer()) as server, closing(server.client(tmp_path)) as client:
        for minute, run in enumerate(["digits-zzzzz", "digits-aaaaa", "digits-big-bbbbb"]):
            server.owner_config_map(run, created=f"2026-11-21T15:0{minute}:00Z")
        meant = {
            asked: find(client, asked, "lab") for asked in ("digits-zzzzz", "digits-z", "digits", "digits-b", None)
        }
        assert list(meant.values()) == [
            "digits-zzzzz",
            "digits-zzzzz",
            "digits-aaaaa",
            "digits-big-bbbbb",
            "digits-big-bbbbb",
        ]
        with pytest.raises(NoSuchRun, match="several runs on lab begin with 'dig': digits-big-bbbbb, digits-aaaaa"):
            find(client, "dig", "lab")
        with pytest.raises(NoSuchRun, match="no run on lab has the id 'mnist'"):
            find(client, "mnist", "lab")


def test_missing_namespace_is_reported_and_not_taken_for_empty(tmp_path: Path) -> None:
    with closing(ObjectServer()) as server, Store(tmp_path / "home") as store:
        address = ClusterAddress("lab", "lab", "team", kubeconfig=server.kubeconfig(tmp_path))
        runs = ClusterRuns(store, address, Context({}, tmp_path))
        for act in (runs.list, lambda: runs.find(None), lambda: runs.find("digits"), lambda: runs.watch().__enter__()):
            with pytest.raises(UsageError, match="there is no namespace team in the cluster of context lab"):
                act()
        server.forbidden = {"namespaces"}  # Without this right, it is unknown whether the namespace exists.
        assert runs.list() == []
        server.forbidden = set()
        server.put("Namespace", "team")
        assert runs.list() == []
        with pytest.raises(NoSuchRun):
            runs.find(None)


def test_local_run_is_found_while_its_cluster_is_unreachable(tmp_path: Path) -> None:
    with closing(ObjectServer()) as server, Store(tmp_path / "home") as store:
        kubeconfig = server.kubeconfig(tmp_path)
        for run, target in (("digits-aaaaa", "lab"), ("digits-bbbbb", "other")):
            store.create(run, name="digits", target=target, output_dir="/o", plan="{}", time=1.0, user="ann").close()
    with Store(tmp_path / "home") as store:
        runs = ClusterRuns(store, ClusterAddress("lab", "lab", "team", kubeconfig=kubeconfig), Context({}, tmp_path))
        for asked in (None, "digits-a", "digits-aaaaa"):
            engine, found = runs.find(asked)
            assert (isinstance(engine, KubernetesEngine), found) == (True, "digits-aaaaa")
        for asked in ("digits-bbbbb", "mnist"):
            with pytest.raises(Unreachable):
                runs.find(asked)
