"""Jobs become node specs on both engines, as listed in `tests/cases/node_specs.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from windlass.engines.kubernetes.objects.pod_assignment import PodAssignment, attempt_facts
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.planning import facts as cluster_facts
from windlass.engines.kubernetes.planning import plan as cluster_plan
from windlass.engines.local import facts as local_facts
from windlass.engines.local import plan as local_plan
from windlass.engines.sources import data_paths
from windlass.engines.travel import CodeFacts
from windlass.plan.compose import AttemptFacts, Continuation, Rendezvous, compose
from windlass.plan.plan import Plan
from windlass.plan.steps import ClusterStep
from windlass.spec.job import Job
from windlass.spec.targets import KubernetesTarget, LocalTarget
from windlass.worker.protocol import NodeSpec, pack, unpack

CASES: list[dict[str, Any]] = YAML(typ="safe").load(Path(__file__).parents[1] / "cases" / "node_specs.yaml")
RUN, CODE = "case-1", "/home/ada/job"


def local(case: dict[str, Any], job: Job) -> tuple[Plan, AttemptFacts]:
    machine, attempt = case.get("machine", {}), case.get("attempt", {})
    facts = local_facts.Facts(
        home="/home/ada", code_dir=CODE, code_dir_found=True, script_found=True, python="/venv/bin/python",
        python_found=True, python_is_ours=True, own_python="/venv/bin/python", package_root="/src", num_cpus=64,
        gpus=("T4",) * machine.get("gpus", 0), environ=frozenset(machine.get("environ", ())), program=None,
        script_imports=(), is_root=False,
        launchers={"mpirun": "/usr/bin/mpirun"}, is_open_mpi=True,
        data_paths=data_paths(job, Path(CODE)),
    )  # fmt: skip
    made = local_plan.plan(job, LocalTarget(name="local", **case.get("target", {})), facts, RUN)
    here = ("127.0.0.1",) * made.num_nodes
    asked = Continuation(attempt.get("resume_from"), 5.0)
    return made, AttemptFacts(attempt.get("number", 1), "/f", Rendezvous(here[0], 4000, here), continuation=asked)


def kubernetes(case: dict[str, Any], job: Job) -> tuple[Plan, AttemptFacts]:
    attempt = case.get("attempt", {})
    cluster = cluster_facts.Cluster("v1.34.4", frozenset(way.api for way in WORKLOADS.values()))
    facts = cluster_facts.Facts(CodeFacts(CODE, True, True, None), cluster, "/home/ada/.kube/config")
    target = KubernetesTarget(name="lab", context="lab", namespace="team-a", **case.get("target", {}))
    made = cluster_plan.plan(job, target, facts, RUN, "boot")
    via = made.only(ClusterStep).via
    num_nodes = len(attempt.get("members", range(made.num_nodes)))
    asked = Continuation(attempt.get("resume_from"), 5.0)
    number = attempt.get("number", 1)
    assignment = PodAssignment(number, PodAssignment.new(attempt.get("made_for", number), num_nodes).pods)
    return made, attempt_facts(made, assignment, via, 5.0, asked)


def seen(spec: NodeSpec, expected: dict[str, Any]) -> dict[str, Any]:
    """Returns the part of a spec that the case names."""
    last = spec.ranks[-1]
    env = {**spec.env, **last.env}
    argv = [*last.argv, *(spec.launch.argv if spec.launch is not None else ())]
    named = expected.get("argv", [])
    at = argv.index(named[0]) if named and named[0] in argv else 0
    known: dict[str, Any] = {
        "node": spec.node,
        "ranks": [rank.rank for rank in spec.ranks],
        "rank": {name: env.get(name) for name in expected.get("rank", ())},
        "launcher": spec.launch.name if spec.launch is not None else None,
        "peers": list(spec.launch.peers) if spec.launch is not None else [],
        "argv": argv[at : at + len(named)],
        "known_at_start": list(spec.known_at_start),
    }
    return {"launcher": known["launcher"], **{name: known[name] for name in expected}}


ENGINES = {"local": local, "kubernetes": kubernetes}
BOTH = [(case, engine) for case in CASES for engine in ENGINES if engine in case or "all" in case]


@pytest.mark.parametrize(("case", "engine"), BOTH, ids=[f"{case['name']} ({engine})" for case, engine in BOTH])
def test_a_job_becomes_these_node_specs(case: dict[str, Any], engine: str) -> None:
    expected = case.get(engine) or case["all"]
    job = Job(**{"name": "case", "run": "train.py", **case["job"]})
    made, facts = ENGINES[engine](case, job)
    specs = compose(made.nodes, case.get("attempt", {}).get("members"), facts)
    if "all" in case:  # another case tests which launcher starts the ranks
        expected = [
            {"launcher": spec.launch.name if spec.launch else None, **one}
            for spec, one in zip(specs, expected, strict=True)
        ]
    assert [seen(spec, one) for spec, one in zip(specs, expected, strict=True)] == [
        {"launcher": None, **one} for one in expected
    ]
    assert unpack(pack(facts.number, dict(enumerate(specs)))) == (facts.number, dict(enumerate(specs)))
    assert Plan.from_json(made.to_json()) == made
