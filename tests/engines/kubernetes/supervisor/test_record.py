"""The record of a run in its cluster is read as written, by any machine and after any interruption."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer, Request, Response, status
from tests.helpers.until import until

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.summary import summary_of
from windlass.engines.kubernetes.supervisor import main
from windlass.engines.kubernetes.supervisor import record as records
from windlass.engines.kubernetes.supervisor.mirror import Mirror, MirroredStore
from windlass.engines.kubernetes.supervisor.record import ClusterRecord, Head, head_manifest
from windlass.errors import EngineError
from windlass.plan.plan import NO_PLAN, Plan
from windlass.runs.events import RECORD_VERSION, Created, Event, PhaseEntered, Progress, Warned
from windlass.runs.phase import Phase
from windlass.runs.record import fold
from windlass.runs.store import Store
from windlass.supervise.backend import HeldElsewhere

RUN = "digits-7f3k2"


@pytest.fixture
def server(server: ObjectServer) -> ObjectServer:
    server.owner_config_map(RUN)
    return server


def history(num_warnings: int = 0, *, chars: int = 20) -> list[Event]:
    entries = [
        Created(RUN, "digits", "lab", "in the pods", user="ann", supervisor="cluster", version=RECORD_VERSION),
        PhaseEntered(Phase.TRAINING),
    ]
    warnings = [Warned(f"{number} ".ljust(chars, ".")) for number in range(num_warnings)]
    return [entry.event(seq, float(seq)) for seq, entry in enumerate([*entries, *warnings], 1)]


def begin(client: Client, events: list[Event], writer: str = "first") -> None:
    """Creates the objects of a submission."""
    owner_config_map = client.get("v1", "ConfigMap", RUN)
    client.create(head_manifest(owner_config_map, Head(tuple(events), summary_of(fold(events), {}), 0, writer)))


def write(record: ClusterRecord, events: list[Event], until_seq: int) -> None:
    known = [event for event in events if event.seq <= until_seq]
    record.write([known[-1]], fold(known), {"step": until_seq})


def test_events_and_status_are_read_unchanged(client: Client) -> None:
    events = history(2)
    begin(client, events[:1])
    writer = ClusterRecord(client, RUN, "pod-a")
    writer.write(events[1:], fold(events), {"step": 7})
    reader = ClusterRecord(client, RUN)
    assert reader.events() == events
    assert reader.events(after=3) == events[3:]
    summary = reader.head().summary
    assert {"phase": "training", "user": "ann", "last_seq": 4, "progress": {"step": 7}}.items() <= summary.items()


def test_events_beyond_the_head_are_in_parts(
    client: Client, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "HEAD_BYTES", 800)
    events = history(18, chars=100)
    begin(client, events[:1])
    writer = ClusterRecord(client, RUN, "pod-a")
    for seq in range(2, len(events) + 1):
        write(writer, events, seq)
    reader = ClusterRecord(client, RUN)
    assert reader.events() == events
    assert reader.head().num_parts >= 2
    before = len(server.requests)
    assert reader.events(after=len(events) - 1) == events[-1:]
    assert len(server.requests) - before == 1  # only the head was read


def test_old_parts_are_dropped_and_the_first_are_kept(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("HEAD_BYTES", 300), ("FIRST_PARTS", 2), ("MAX_PARTS", 5)):
        monkeypatch.setattr(records, name, value)
    events = history(18, chars=100)
    begin(client, events[:1])
    writer = ClusterRecord(client, RUN, "pod-a")
    for seq in range(2, len(events) + 1):
        write(writer, events, seq)
    found = ClusterRecord(client, RUN).events()
    assert found[0] == events[0]
    assert found[-1] == events[-1]
    assert 5 < len(found) < len(events)
    assert fold(found).last_seq == len(events)


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_write_that_fails_is_repeated_without_a_second_event(
    client: Client, server: ObjectServer, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    monkeypatch.setattr(records, "HEAD_BYTES", 300)
    events = history(6, chars=100)
    begin(client, events[:1])
    writer = ClusterRecord(client, RUN, "pod-a")
    failures = iter(range(4))

    def fail(request: Request) -> Response | None:
        if request.verb not in ("PUT", "POST") or next(failures, None) is None:
            return None
        if lost == "answer":
            server._store(request.plural, request.body)
        return status(500, "InternalError")

    for seq in range(2, len(events) + 1):
        server.fails = fail
        for _ in range(5):
            try:
                write(writer, events, seq)
                break
            except EngineError:
                continue
    assert ClusterRecord(client, RUN).events() == events


def test_a_supervisor_that_was_replaced_cannot_write(client: Client) -> None:
    events = history(4)
    begin(client, events[:1])
    old, new = ClusterRecord(client, RUN, "pod-a"), ClusterRecord(client, RUN, "pod-b")
    write(old, events, 2)
    write(new, events, 3)
    with pytest.raises(HeldElsewhere):
        write(old, events, 3)
    write(new, events, 4)
    assert [event.seq for event in ClusterRecord(client, RUN).events()] == [1, 2, 3, 4]


def test_the_first_write_of_a_new_supervisor_may_meet_the_last_of_the_old_one(client: Client) -> None:
    events = history(4)
    begin(client, events[:1])
    old, new = ClusterRecord(client, RUN, "pod-a"), ClusterRecord(client, RUN, "pod-b")
    write(old, events, 2)
    new._object = client.get("v1", "ConfigMap", layout.record_name(RUN))
    write(old, events, 3)
    with pytest.raises(Refused):
        write(new, events, 4)
    write(new, events, 4)


def changed(client: Client, writer: str = "pod-a") -> None:
    """Removes the head's events, like another user of the namespace."""
    head = client.get("v1", "ConfigMap", layout.record_name(RUN))
    head["metadata"]["annotations"][layout.WRITER_ANNOTATION] = writer
    client.call("PUT", client.path("v1", "ConfigMap", layout.record_name(RUN)), {**head, "data": {}})


@pytest.mark.parametrize("damage", ["deleted", "changed", "another writer"])
def test_a_writer_restores_a_head_that_something_else_has_changed(
    client: Client, server: ObjectServer, damage: str
) -> None:
    events = history(4)
    begin(client, events[:1])
    record = ClusterRecord(client, RUN, "pod-a")
    write(record, events, 2)
    server.put("Lease", RUN, api="coordination.k8s.io/v1", spec={"holderIdentity": "pod-a"})
    if damage == "deleted":
        server.remove("ConfigMap", layout.record_name(RUN))
    else:
        changed(client, "pod-a" if damage == "changed" else "pod-b")
    record.write([], fold(events[:2]), {})
    assert ClusterRecord(client, RUN).events() == events[:2]
    write(record, events, 3)
    assert ClusterRecord(client, RUN).events() == events[:3]


def test_the_record_of_a_removed_run_is_not_restored(client: Client, server: ObjectServer) -> None:
    events = history(4)
    begin(client, events[:1])
    record = ClusterRecord(client, RUN, "pod-a")
    write(record, events, 2)
    for name in (RUN, layout.record_name(RUN)):
        server.remove("ConfigMap", name)
    with pytest.raises(Refused):
        write(record, events, 3)
    assert not server.names("ConfigMap")


def test_event_of_another_supervisor_is_detected(client: Client) -> None:
    """Both supervisors have continued the same record: the second must not take the first one's event for its own."""
    events = history(1)
    begin(client, events[:2])
    ClusterRecord(client, RUN, "pod-a").write(events[2:], fold(events), {})
    with pytest.raises(HeldElsewhere):
        ClusterRecord(client, RUN, "pod-b").write([Warned("other").event(3, 3.0)], fold(events), {})


# -- the mirror -------------------------------------------------------------------------------------------------------


@pytest.fixture
def mirrored(client: Client, tmp_path: Path) -> Iterator[tuple[MirroredStore, Mirror]]:
    begin(client, history()[:1])
    with (
        closing(Mirror(ClusterRecord(client, RUN, "pod-a"), client.health)) as mirror,
        MirroredStore(tmp_path / "home", mirror) as store,
    ):
        store.copy(RUN, history()[:1], "{}")
        yield store, mirror


def test_flushed_events_are_in_the_cluster(mirrored: tuple[MirroredStore, Mirror], client: Client) -> None:
    store, mirror = mirrored
    writer = store.writer(RUN)
    assert writer is not None
    with closing(writer):
        writer.note(PhaseEntered(Phase.TRAINING), at=5.0)
        writer.note(Warned("slow"), at=6.0)
        assert mirror.flush(10)
        assert ClusterRecord(client, RUN).events() == writer.events()


def test_flush_waits_for_an_unreachable_cluster_up_to_its_limit(
    mirrored: tuple[MirroredStore, Mirror], client: Client, server: ObjectServer
) -> None:
    store, mirror = mirrored
    server.stop()
    writer = store.writer(RUN)
    assert writer is not None
    with closing(writer):
        writer.note(Warned("slow"), at=6.0)
        assert not mirror.flush(0.3)
        server.start()
        assert mirror.flush(20)
        assert ClusterRecord(client, RUN).events() == writer.events()


def test_progress_alone_is_written_with_a_delay(
    mirrored: tuple[MirroredStore, Mirror], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.engines.kubernetes.supervisor.mirror.PROGRESS_SECONDS", 0.05)
    store, mirror = mirrored
    mirror.put(store.status(RUN), [])
    store.set_progress(RUN, Progress(step=12).to_json())
    until(lambda: ClusterRecord(client, RUN).head().summary.get("progress", {}).get("step") == 12)


def test_a_quiet_supervisor_restores_its_record_too(
    client: Client, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.engines.kubernetes.supervisor.mirror.CHECK_SECONDS", 0.05)
    events = history()
    begin(client, events)
    with closing(Mirror(ClusterRecord(client, RUN, "pod-a"), client.health)) as mirror:
        mirror.put(fold(events), [])
        until(lambda: ClusterRecord(client, RUN).head().writer == "pod-a")
        server.remove("ConfigMap", layout.record_name(RUN))
        until(lambda: layout.record_name(RUN) in server.names("ConfigMap"))
        assert ClusterRecord(client, RUN).events() == events


def test_a_supervisor_that_takes_over_keeps_the_newest_progress(
    mirrored: tuple[MirroredStore, Mirror], client: Client
) -> None:
    """The summary has the progress before it is due in the events."""
    store, mirror = mirrored
    events = [*history(), Progress(step=3).event(3, 3.0)]
    ClusterRecord(client, RUN, "pod-b").write(events[1:], fold(events), {"step": 7, "at": 9.0})
    plan = Plan(RUN, "digits", "lab", "kubernetes", "/out", 1, 1, NO_PLAN.policy, {}, ())
    with main._restored(store, ClusterRecord(client, RUN), plan) as writer:
        mirror.put(writer.status, [])
        assert store.status(RUN).progress.step == 7
        writer.note(Warned("after"), at=10.0)
        assert mirror.flush(10)
    assert ClusterRecord(client, RUN).head().summary["progress"] == {"step": 7, "at": 9.0}


def test_mirror_stops_writing_after_another_supervisor_has_written(
    mirrored: tuple[MirroredStore, Mirror], client: Client
) -> None:
    store, mirror = mirrored
    writer = store.writer(RUN)
    assert writer is not None
    with closing(writer):
        writer.note(Warned("one"), at=5.0)
        assert mirror.flush(10)
        other = ClusterRecord(client, RUN, "pod-b")
        other.write([Warned("two").event(3, 6.0)], store.status(RUN), {})
        writer.note(Warned("three"), at=7.0)
        assert not mirror.flush(10)
        assert mirror.is_lost


# -- the cache --------------------------------------------------------------------------------------------------------


def test_store_copies_a_record_and_later_its_new_events(tmp_path: Path) -> None:
    events = history(3)
    with Store(tmp_path) as store:
        store.copy(RUN, events[:2], NO_PLAN.to_text())
        store.copy(RUN, events[1:4])
        after = store.copy(RUN, events[2:])
        assert store.events(RUN) == events
        assert store.status(RUN) == after == fold(events)
        assert after.supervision.supervisor == "cluster"
        assert after.supervision.machine is None
        assert store.plan(RUN) == NO_PLAN
