"""A run that could be resumed is not removed with the claim that it owns; tested with an API server on loopback."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer
from tests.engines.kubernetes.planning.test_plan import FACTS, TARGET

from windlass.actions.runs import require_removable
from windlass.engines.kubernetes.engine import KubernetesEngine
from windlass.engines.kubernetes.planning.plan import plan
from windlass.errors import UsageError
from windlass.runs.events import RunEnded
from windlass.runs.phase import Phase
from windlass.runs.store import Store
from windlass.spec.job import Job
from windlass.spec.targets import KubernetesTarget

RUN = "digits-7f3k2"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "home") as store:
        yield store


def ended(store: Store, server: ObjectServer, tmp_path: Path, phase: Phase) -> KubernetesEngine:
    """Returns the engine of a run that has ended in this phase, with results in a claim that the run owns."""
    server.owner_config_map(RUN)
    target = TARGET.model_copy(update={"namespace": "team"})
    assert isinstance(target, KubernetesTarget)
    facts = dataclasses.replace(FACTS, kubeconfig=server.kubeconfig(tmp_path / "kube"))
    job = Job(name="digits", run="train.py", kubernetes={"results": {"size": "1GiB"}})
    made = plan(job, target, facts, RUN, "boot")
    with closing(
        store.create(RUN, name="digits", target="lab", output_dir="out", plan=made.to_text(), time=1e9)
    ) as writer:
        writer.append(RunEnded(phase, 1))
    return KubernetesEngine(store)


@pytest.mark.parametrize(
    ("phase", "owner", "is_kept"),
    [
        (Phase.FAILED, RUN, True),
        (Phase.STOPPED, RUN, True),
        (Phase.SUCCEEDED, RUN, False),
        (Phase.FAILED, "", False),
    ],
)
def test_a_run_is_not_removed_with_the_claim_that_it_could_be_resumed_from(
    store: Store, server: ObjectServer, tmp_path: Path, phase: Phase, owner: str, is_kept: bool
) -> None:
    owners = [{"kind": "ConfigMap", "name": owner}] if owner else []
    server.put("PersistentVolumeClaim", RUN, metadata={"ownerReferences": owners})
    engine = ended(store, server, tmp_path, phase)
    if not is_kept:
        require_removable(engine, RUN)
        return
    with pytest.raises(UsageError, match=f"with it would go claim {RUN}, and the files in it"):
        require_removable(engine, RUN)
