"""Node specs of an attempt: ranks are numbered over its members, and each variable has its precedence."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.engines import netns
from windlass.plan.compose import AttemptFacts, Continuation, NodeTemplate, Rendezvous, compose
from windlass.worker.protocol import LauncherSpec, NoticeSpec, ResumeSpec

NODES = NodeTemplate(
    run_id="run",
    num_nodes=3,
    procs_per_node=2,
    script="train.py",
    worker_python="python",
    cwd="/code",
    argv=("python", "train.py"),
    contract={},
    defaults={},
    target_env={},
    job_env={},
    grace_seconds=1.0,
)


def facts(num_nodes: int, **more: Any) -> AttemptFacts:
    hosts = tuple(f"host-{place}" for place in range(num_nodes))
    return AttemptFacts(4, "/run/attempt-4", Rendezvous(hosts[0], 29500, hosts), **more)


def test_ranks_are_numbered_over_the_members() -> None:
    first, second = compose(NODES.replace(job_env={"MINE": "1"}), (0, 2), facts(2))
    assert (first.node, second.node) == (0, 2)
    assert [rank.rank for rank in second.ranks] == [2, 3]
    env = {**second.env, **second.ranks[1].env}
    expected = {
        "WORLD_SIZE": "4",
        "GROUP_WORLD_SIZE": "2",
        "RANK": "3",
        "NODE_RANK": "1",
        "LOCAL_RANK": "1",
        "MINE": "1",
    }
    assert {name: env[name] for name in expected} == expected
    assert second.world_size == 4


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ({}, "/parts"),
        ({"target_env": {"PYTHONPATH": "/a"}}, "/a:/parts"),
        ({"target_env": {"PYTHONPATH": "/a"}, "job_env": {"PYTHONPATH": "/b:/c"}}, "/b:/c:/parts"),
        ({"job_env": {"PYTHONPATH": ""}}, ""),
    ],
)
def test_pythonpath_of_the_user_comes_before_that_of_the_engine(layers: dict[str, Any], expected: str) -> None:
    template = NODES.replace(defaults={"PYTHONPATH": "/parts"}, **layers)
    assert compose(template, (0,), facts(1))[0].env["PYTHONPATH"] == expected


@given(
    st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1))),
    st.integers(1, 4),
)
def test_whatever_the_members_ranks_are_0_to_world_size_once_each(sizes: tuple[int, set[int]], procs: int) -> None:
    num_nodes, members = sizes
    template = NODES.replace(num_nodes=num_nodes, procs_per_node=procs)
    specs = compose(template, sorted(members), facts(len(members)))
    assert [spec.node for spec in specs] == sorted(members)
    assert [rank.rank for spec in specs for rank in spec.ranks] == list(range(len(members) * procs))
    assert {spec.env["WORLD_SIZE"] for spec in specs} == {str(len(members) * procs)}


@pytest.mark.parametrize(
    ("layers", "seen"),
    [
        ({"contract": {"A": "contract"}, "defaults": {"A": "default"}}, "default"),
        ({"defaults": {"A": "default"}, "target_env": {"A": "target"}}, "target"),
        ({"target_env": {"A": "target"}, "job_env": {"A": "job"}}, "job"),
        ({"job_env": {"A": "job"}, "node_env": {"0": {"A": "node"}}}, "node"),
    ],
)
def test_a_later_source_of_a_variable_overrides_the_earlier_ones(layers: dict[str, Any], seen: str) -> None:
    assert compose(NODES.replace(**layers), attempt=facts(3))[0].env["A"] == seen


def test_the_job_may_set_what_the_attempt_and_the_group_set_but_not_what_is_a_ranks_own() -> None:
    chosen = {"WORLD_SIZE": "7", "MASTER_PORT": "1", "RANK": "9", "WINDLASS_RESUME_FROM": "mine"}
    asked = Continuation("step-7", 9.0)
    spec = compose(NODES.replace(job_env=chosen), (1,), facts(1, continuation=asked))[0]
    env = {**spec.env, **spec.ranks[0].env}
    assert (env["WORLD_SIZE"], env["MASTER_PORT"], env["RANK"]) == ("7", "1", "0")
    assert env["WINDLASS_RESUME_FROM"] == "step-7"


def test_the_first_member_watches_for_notices_of_the_machine() -> None:
    template = NODES.replace(notices=NoticeSpec("http://169.254.169.254", 5.0))
    asked = Continuation(known_notices=(("stop", "then"),))
    for members in ((0, 2), (1, 2)):
        first, second = compose(template, members, facts(2, continuation=asked))
        assert first.notices == NoticeSpec("http://169.254.169.254", 5.0, (("stop", "then"),))
        assert second.notices is None


def test_one_worker_starts_the_ranks_of_all_nodes_where_one_launcher_does() -> None:
    template = NODES.replace(one_worker=True, node_env={"1": {"CUDA_VISIBLE_DEVICES": "2,3"}})
    [spec] = compose(template, attempt=facts(3))
    assert [rank.env["NODE_RANK"] for rank in spec.ranks] == ["0", "0", "1", "1", "2", "2"]
    assert [rank.env.get("CUDA_VISIBLE_DEVICES") for rank in spec.ranks] == [None, None, "2,3", "2,3", None, None]
    assert "CUDA_VISIBLE_DEVICES" not in spec.env


def test_the_heartbeat_of_a_node_goes_to_the_other_members() -> None:
    template = NODES.replace(networks=netns.node_specs(netns.describe("run", "/home", 3, None)))
    beat = compose(template, (0, 2), facts(2))[1].heartbeat
    assert beat is not None
    assert (beat.id, beat.node, beat.address, beat.peers) == ("run.4", 2, "10.77.0.3", {"0": "10.77.0.1"})
    assert compose(template, (0,), facts(1))[0].heartbeat is None


def test_mpirun_gets_the_addresses_of_the_other_members_where_it_waits_for_them() -> None:
    launchers = (LauncherSpec("mpirun", ("mpirun",), "I", 1.0, port=2222), LauncherSpec("sshd", ("sshd",), "I", 1.0))
    first, second = compose(NODES.replace(launchers=launchers), (0, 2), facts(2))
    assert first.launch is not None
    assert second.launch is not None
    assert (first.launch.peers, second.launch.name, second.launch.peers) == (("host-1",), "sshd", ())


def test_the_checkpoint_that_the_user_asked_for_is_named_to_scripts_that_save_for_themselves() -> None:
    template = NODES.replace(resume=ResumeSpec("*.pt", (), "/c", "/code", ("/c",)))
    asked = Continuation("step-7", 9.0)
    resume = compose(template, attempt=facts(3, continuation=asked))[0].resume
    assert resume is not None
    assert (resume.named, resume.named_at) == ("step-7", 9.0)


def test_an_attempt_has_members() -> None:
    with pytest.raises(ValueError, match="at least one rank"):
        compose(NODES, (), None)
