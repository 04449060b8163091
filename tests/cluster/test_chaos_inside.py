"""A run supervised in its cluster survives injected faults: its weights equal those of an undisturbed run, bit
for bit.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.harness import TRAIN
from tests.cluster.bed.cluster import Bed
from tests.cluster.bed.sharing import striking
from tests.cluster.chaos_inside import EPOCHS, EVERY_STEPS, JOB, LAUNCHER, LEFT_SECONDS, Play
from tests.cluster.chaos_plans import KINDS, case_of
from tests.cluster.harnesses import claimed, harness_on, opened, set_up
from tests.cluster.proxy import behind, proxied
from tests.cluster.test_supervised_inside import Machine
from tests.cluster.test_training import LOCAL
from tests.engines.harness import Harness
from tests.helpers.once import once
from tests.helpers.until import until

from windlass.runs.phase import Phase

AT_NIGHT = 1
"""Seed that `make nightly` runs before `make chaos-cluster` runs 100; CI runs none."""


def chosen_seeds() -> list[Any]:
    """Returns `$CHAOS_SEED`, or the first `$CHAOS_SEEDS` seeds, or that of a night."""
    if one := os.environ.get("CHAOS_SEED"):
        return [int(one)]
    if several := os.environ.get("CHAOS_SEEDS"):
        return list(range(int(several)))
    return [pytest.param(AT_NIGHT, marks=pytest.mark.nightly)]


@pytest.fixture(scope="module")
def broken(request: pytest.FixtureRequest) -> Bed:
    """Test cluster for faults: `WINDLASS_TEST_BED`, which several seeds may share, or an exclusive one."""
    found = request.getfixturevalue("bed" if "WINDLASS_TEST_BED" in os.environ else "lone_bed")
    assert isinstance(found, Bed)
    return found


@pytest.fixture
def struck(broken: Bed) -> Iterator[str]:
    """Namespace with supervisors in the cluster, and a claim for results."""
    with contextlib.ExitStack() as kept:
        with striking(broken):
            name = kept.enter_context(broken.namespace("chaos"))
            set_up(broken, name)
            claimed(broken, name)
        yield name
        with striking(broken):
            kept.close()


def undisturbed(world_size: int, tmp_path_factory: pytest.TempPathFactory, folder: Path) -> str:
    """Returns the digest of the weights of an undisturbed local run with this many ranks; computed once."""

    def digest() -> str:
        with opened(Harness(LOCAL, folder / "undisturbed")) as harness:
            words = (TRAIN.name, str(folder), "--every", str(EVERY_STEPS), "--epochs", str(EPOCHS), "--pause", "0")
            run = harness.start(*words, base=TRAIN.parent, launcher=LAUNCHER, procs_per_node=world_size)
            status = run.wait()
            assert status.phase is Phase.SUCCEEDED
        return (folder / "digest").read_text()

    return once(tmp_path_factory, f"undisturbed-inside-{world_size}", digest)


@pytest.fixture
def play(broken: Bed, struck: str, seed: int, tmp_path: Path) -> Iterator[Play]:
    """Run of a seed, submitted from a machine that accesses the cluster through a proxy."""
    case, kubeconfig = case_of(seed), tmp_path / "kubeconfig"
    results = {"results": {"claim": "results"}, "via": case.via, "lost_after": 5}
    with proxied(broken) as proxy:
        machine = behind(broken, proxy, kubeconfig)
        with opened(harness_on(machine, struck, tmp_path / "home", **JOB, kubernetes=results)) as harness:
            yield Play(case, broken, struck, harness, proxy, kubeconfig)


def test_seeds_cover_every_kind_of_fault() -> None:
    cases = [case_of(seed) for seed in range(100)]
    assert {case.strikes[0].kind for case in cases[: len(KINDS)]} == set(KINDS)
    assert {(case.via, case.is_elastic) for case in cases} == {
        ("job", False),
        ("job", True),
        ("jobset", False),
        ("jobset", True),
    }
    assert str(case_of(7)) == str(case_of(7))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", chosen_seeds())
def test_weights_and_record_match_an_undisturbed_run(
    seed: int, play: Play, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    expected = undisturbed(play.case.world_size, tmp_path_factory, tmp_path)
    try:
        play.play()
    finally:
        print(f"seed {seed}, {play.story()}")
    assert list(play.problems(expected)) == [], f"replay: make chaos-cluster SEED={seed}"
    with striking(play.bed):
        elsewhere = Machine(play.bed, play.namespace, tmp_path / "elsewhere")
        engine = elsewhere.find(play.run.id)
        assert engine.status(play.run.id) == play.harness.store.status(play.run.id)
        assert elsewhere.store.events(play.run.id) == play.events()
        play.harness.runs.clear()
        engine.delete(play.run.id)
    until(lambda: not play.left(), play.left, LEFT_SECONDS)
    elsewhere.store.close()
