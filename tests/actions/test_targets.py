"""With `--on a,b`, the first target that can run the job is used, and notes explain why earlier ones cannot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from windlass.actions.jobs import planned_job, read_job
from windlass.actions.runs import make_plan
from windlass.actions.targets import find_address, find_target, named_targets
from windlass.errors import JobFileError, UsageError
from windlass.plan.plan import Plan
from windlass.runs.context import Context
from windlass.spec.address import ClusterAddress
from windlass.spec.targets import LocalTarget

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: away, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: me, user: {token: none}}]
contexts: [{name: away, context: {cluster: away, user: me}}]
"""
TARGETS = """
away: {kind: kubernetes, context: away}
unknown: {kind: kubernetes, context: no-such-context}
slow: {kind: local, python: /no/such/python}
"""


@pytest.fixture
def context(tmp_path: Path) -> Context:
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    folder = tmp_path / "job"  # a kubeconfig inside the code folder would be refused
    folder.mkdir()
    (folder / "targets.yaml").write_text(TARGETS)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "job.yaml").write_text("name: digits\nrun: train.py\n")
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "WINDLASS_HOME": str(tmp_path / "home"),
        "KUBECONFIG": str(tmp_path / "kubeconfig"),
    }
    return Context(environ, folder)


def planned(on: str, context: Context) -> Plan:
    return make_plan(read_job(str(context.cwd / "job.yaml"), (), {}, context), on, context)


def passed_over(plan: Plan) -> list[str]:
    return [note.message for note in plan.notes if note.code == "target-passed-over"]


def test_first_suitable_target_is_used(context: Context) -> None:
    made = planned("away, unknown,local", context)
    assert made.target == "local"
    assert not any(note.blocks for note in made.notes)
    away, unknown = passed_over(made)
    assert away.startswith("away cannot run it: https://127.0.0.1:1 does not answer")
    assert "unknown: the kubeconfig" in unknown
    assert "no context 'no-such-context'" in unknown


def test_targets_after_the_first_suitable_one_are_not_queried(context: Context) -> None:
    assert passed_over(planned("local,away", context)) == []


def test_plan_without_a_suitable_target_has_notes_for_all(context: Context) -> None:
    made = planned("away,unknown", context)
    assert made.target == "away"
    assert any(note.blocks for note in made.notes)
    assert len(passed_over(made)) == 1


def test_unknown_target_is_refused_before_any_query(context: Context) -> None:
    with pytest.raises(UsageError, match="no target is called 'lokal'"):
        planned("local,lokal", context)


def test_commands_on_existing_runs_read_only_the_cluster_address(context: Context) -> None:
    assert find_address("away", context) == ClusterAddress("away", "away", "default")
    assert find_address("slow", context) == find_target("slow", context)
    with pytest.raises(UsageError, match="no target is called 'moon'"):
        find_address("moon", context)
    (context.cwd / "targets.yaml").write_text(f"{TARGETS}broken: {{kind: kubernetes}}\n")
    assert find_address("away", context) == ClusterAddress("away", "away", "default")
    for name in ("broken", "slow"):
        with pytest.raises(JobFileError, match=r"broken\.context"):
            find_address(name, context)


def test_local_target_of_a_later_file_is_kept(context: Context, tmp_path: Path) -> None:
    own = tmp_path / ".config/windlass/targets.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("local: {kind: local, price_per_hour: 2}\n")
    assert named_targets(context)["local"] == (LocalTarget(name="local", price_per_hour=2), own)
    own.unlink()
    assert named_targets(context)["local"] == (LocalTarget(name="local"), None)


def test_single_rank_with_a_process_group_gets_torchrun_variables_on_every_target(
    context: Context,
) -> None:
    (context.cwd / "ddp.py").write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    for on in ("local", "away"):
        made = make_plan(read_job("ddp.py", (), {}, context), on, context)
        assert (made.job["launcher"], made.nodes.launcher) == ("torchrun", "torchrun")
        assert [note.message for note in made.notes if note.code == "torchrun-variables"] == [
            "ddp.py line 2 calls init_process_group: its one rank gets the variables of torchrun"
        ]
    assert planned_job(made, {}).job.launcher == "torchrun"


def test_explicit_launcher_is_kept(context: Context) -> None:
    (context.cwd / "train.py").write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    (context.cwd / "job.yaml").write_text("name: digits\nrun: train.py\nlauncher: plain\n")
    ready = read_job(str(context.cwd / "job.yaml"), (), {"grace": 3}, context)
    assert make_plan(ready, "local", context).nodes.launcher == "plain"
