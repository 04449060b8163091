"""A run cannot be lost: whatever is killed, filled or spoilt, its weights end bit by bit as if nothing had happened."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.harness import Play
from tests.chaos.plans import DAMAGES, FULL_STORES, KINDS, NOTICES, STORE_KINDS, Case, case_of
from tests.chaos.store_harness import StorePlay
from tests.helpers.disk import small_disk
from tests.helpers.machine import Machine, machine_in
from tests.helpers.once import once
from tests.servers.faulty import FaultProxy, fault_proxy
from tests.servers.s3 import S3Server, s3_server

NUM_SEEDS = 300
OFTEN = (46, 72, 150, 151, 178, 198, 200, 201, 202, 203)
"""What CI runs: the fewest seeds that have every kind of fault. `make chaos` runs all."""
STORE_KIB = 24 << 10
"""Of the disk under the records of cases that fill it: room for all of them, and little to fill."""
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "concepts" / "recovery.md"


def chosen_seeds() -> list[Any]:
    """`$CHAOS_SEED`, one; else all."""
    if one := os.environ.get("CHAOS_SEED"):
        return [int(one)]
    seldom = (pytest.mark.slow, pytest.mark.nightly)
    return [pytest.param(seed, marks=pytest.mark.slow if seed in OFTEN else seldom) for seed in range(NUM_SEEDS)]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """One for all seeds of a test process, so that they share a warm process."""
    with machine_in(tmp_path_factory.mktemp("chaos")) as made:
        yield made
        made.windlass("warm", "stop")


@pytest.fixture(scope="module")
def small_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """One whose home is a disk of its own, for cases that fill it; and so with a warm process of its own."""
    folder = tmp_path_factory.mktemp("chaos-small")
    with small_disk(folder / "home", STORE_KIB), machine_in(folder) as made:
        yield made
        made.windlass("warm", "stop")


@dataclass(frozen=True)
class StoreScene:
    """An S3 server behind the lying proxy, and a machine that reaches it there."""

    server: S3Server
    proxy: FaultProxy
    machine: Machine


@pytest.fixture(scope="module")
def store_scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreScene]:
    """One for all seeds of a test process, so that they share a warm process."""
    folder = tmp_path_factory.mktemp("chaos-store")
    with (
        s3_server(folder / "buckets") as server,
        fault_proxy(server.port) as proxy,
        machine_in(folder, **server.environ(proxy.endpoint)) as made,
    ):
        yield StoreScene(server, proxy, made)
        made.windlass("warm", "stop")


def store_play(case: Case, scene: StoreScene, folder: Path) -> StorePlay:
    """The run of a case in a bucket of its own."""
    bucket = f"chaos-{case.seed}"
    scene.server.client().create_bucket(Bucket=bucket)
    scene.proxy.reset()
    return StorePlay(case, scene.machine, folder, server=scene.server, proxy=scene.proxy, bucket=bucket)


def undisturbed(world_size: int, machine: Machine, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> str:
    """The digest of a run of so many ranks without faults; computed once, for all test processes."""

    def digest() -> str:
        play = Play(Case(-world_size, 1, world_size, ()), machine, tmp_path / "undisturbed")
        play.play()
        assert play.problems == []
        assert list(play.steps()) == [1]
        return play.digest()

    return once(tmp_path_factory, f"undisturbed-{world_size}", digest)


def test_seeds_meet_every_kind_of_fault() -> None:
    cases = [case_of(seed) for seed in OFTEN]
    assert {strike.kind for case in cases for strike in case.strikes} == {*KINDS, *STORE_KINDS}
    assert {case.world_size for case in cases} == {1, 2, 4}
    assert set(KINDS) > NOTICES | DAMAGES | FULL_STORES
    assert [str(case_of(seed)) for seed in OFTEN] == [str(case) for case in cases]


def test_the_page_on_recovery_has_a_row_for_every_kind_of_fault() -> None:
    named = re.findall(r"^\|.*\| `([a-z ]+)` \|$", PAGE.read_text(), re.MULTILINE)
    assert sorted(named) == sorted((*KINDS, *STORE_KINDS))


def test_every_test_that_the_page_names_is_there() -> None:
    named = re.findall(r"`(tests/[^`:]+)::(\w+)`", PAGE.read_text())
    assert len(named) > 10
    assert [(file, name) for file, name in named if f"def {name}(" not in (ROOT / file).read_text()] == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", chosen_seeds())
def test_the_weights_are_those_of_the_undisturbed_run(
    seed: int,
    machine: Machine,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    case = case_of(seed)
    expected = undisturbed(case.world_size, machine, tmp_path_factory, tmp_path)
    if case.fills_the_store:
        machine = request.getfixturevalue("small_machine")
    scene = request.getfixturevalue("store_scene") if case.is_in_store else None
    machine = scene.machine if scene else machine
    for refused in (machine.home / "warm").glob("*.refused"):
        refused.unlink()  # a warm process that was killed while it imported; the cases after it would all start cold
    folder = tmp_path / "case"
    play = store_play(case, scene, folder) if scene else Play(case, machine, folder)
    play.play()
    did = [f"{struck.strike} (attempt {struck.attempt}, {struck.victims})" for struck in play.struck]
    print(f"seed {seed}, {case}\n{did}\n{play.steps()}")
    if play.digest() != expected:
        play.problems.append(f"weights {play.digest()[:12]}, undisturbed {expected[:12]}")
    assert play.problems == [], f"replay: make chaos SEED={seed}"
    assert expected
