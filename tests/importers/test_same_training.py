"""An imported job trains like the original: the same nodes and ranks, connected, after the same commands."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from windlass.errors import JobFileError
from windlass.importers.convert import Format, Imported, import_text

POD = "{containers: [{name: a, image: example/a:1, command: [%s]}]}"


def manifest(kind: str, version: str, spec: str) -> str:
    return f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: small}}\nspec: {spec}\n"


def meanings(made: Imported) -> str:
    return "\n".join(one.meaning for one in made.actionable)


# -- nodes ------------------------------------------------------------------------------------------------------------


def mpijob(fields: str, workers: str) -> str:
    launcher = f"Launcher: {{template: {{spec: {POD % 'mpirun, python, /a/train.py'}}}}}"
    return manifest(
        "MPIJob", "kubeflow.org/v2beta1", f"{{slotsPerWorker: 2, {fields} mpiReplicaSpecs: {{{launcher}{workers}}}}}"
    )


@pytest.mark.parametrize(
    ("fields", "workers", "nodes"),
    [
        ("", 3, 3),
        ("runLauncherAsWorker: false,", 3, 3),
        ("runLauncherAsWorker: true,", 3, 4),
        ("runLauncherAsWorker: true,", 0, 1),
        ("runLauncherAsWorker: true,", None, 1),
    ],
)
def test_launcher_that_runs_ranks_counts_as_a_node(fields: str, workers: int | None, nodes: int) -> None:
    spec = f", Worker: {{replicas: {workers}, template: {{spec: {{containers: [{{name: w, image: example/b:1}}]}}}}}}"
    made = import_text(mpijob(fields, "" if workers is None else spec), "job.yaml")
    assert (made.job.nodes.max, made.job.procs_per_node, made.job.launcher) == (nodes, 2, "mpi")
    assert made.job.image == ("example/b:1" if workers else "example/a:1")


@pytest.mark.parametrize(
    ("policy", "replicas", "nodes"),
    [
        ("minReplicas: 1, maxReplicas: 64", 2, (1, 2)),
        ("minReplicas: 2, maxReplicas: 4", 4, (2, 4)),
        ("minReplicas: 3, maxReplicas: 4", 1, (3, 3)),
        ("minReplicas: 1, maxReplicas: 2", 5, (1, 2)),
    ],
)
def test_elastic_job_starts_with_its_replicas(policy: str, replicas: int, nodes: tuple[int, int]) -> None:
    template = POD % "torchrun, /a/train.py"
    spec = f"pytorchReplicaSpecs: {{Worker: {{replicas: {replicas}, template: {{spec: {template}}}}}}}"
    made = import_text(manifest("PyTorchJob", "kubeflow.org/v1", f"{{elasticPolicy: {{{policy}}}, {spec}}}"), "a.yaml")
    assert (made.job.nodes.min, made.job.nodes.max) == nodes
    assert ("may be given up to" in meanings(made)) == (nodes[1] < int(policy[-2:]))
    assert ("pods at the start" in meanings(made)) == (not nodes[0] <= replicas <= nodes[1])


SET = """apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {{name: pair}}
spec:
  replicatedJobs:
    - name: workers
      template: {{spec: {{parallelism: 2, completions: 2, template: {{spec: {{containers: [
        {{name: t, image: a/b:1, command: [bash, -c, "{workers}"]}}]}}}}}}}}
    - name: master
      template: {{spec: {{template: {{spec: {{containers: [
        {{name: t, image: a/b:1, command: [bash, -c, "{master}"]}}]}}}}}}}}
"""
WORKERS = (
    "torchrun --nnodes=3 --node-rank=$((JOB_COMPLETION_INDEX+1)) --nproc-per-node=2 --master-addr=pair-master-0-0 "
    "/a/train.py --lr 1"
)


def test_torchrun_jobset_with_master_and_workers_is_one_job_of_all_pods() -> None:
    master = "torchrun --nnodes 3 --node-rank=0 --nproc-per-node 2 --master-addr=pair-master-0-0 /a/train.py --lr 1"
    made = import_text(SET.format(workers=WORKERS, master=master), "set.yaml")
    assert (made.job.run, made.job.nodes.max, made.job.procs_per_node) == ("/a/train.py --lr 1", 3, 2)
    assert made.actionable == ()
    other = import_text(SET.format(workers=WORKERS, master=master.replace("--lr 1", "--lr 2")), "set.yaml")
    assert (other.job.run, meanings(other)) == (
        "/a/train.py --lr 2",
        "these pods have another run than those of rank 0",
    )


def test_jobset_whose_rank_0_has_another_command_is_refused() -> None:
    master = "torchrun --nnodes=3 --node-rank=0 /a/first.py"
    with pytest.raises(JobFileError, match="starts other ranks of the same training than the rest of the set"):
        import_text(SET.format(workers=WORKERS, master=master), "set.yaml")
    made = import_text(SET.format(workers=WORKERS, master="python /a/score.py"), "set.yaml")
    assert "job master of the set, in addition to the training job" in meanings(made)


def test_node_rank_passed_to_the_program_stays_in_the_shell_script() -> None:
    words = "python /a/train.py --node-rank=$((JOB_COMPLETION_INDEX+1))"
    made = import_text(SET.format(workers=words, master="sleep 1"), "set.yaml")
    assert made.job.command is not None
    assert made.job.command[-1].endswith(words)


# -- ranks that meet --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        '[torchrun, "--nnodes=$(WORLD_SIZE)", "--node_rank=$(RANK)", --nproc_per_node=2, train.py]',
        '[/bin/bash, -c, "torchrun --nnodes=$(WORLD_SIZE) --node_rank=$(RANK) '
        '--nproc_per_node=2 --master_addr=$(MASTER_ADDR) train.py"]',
    ],
)
def test_operator_set_numbers_are_read_from_the_manifest(command: str) -> None:
    replica = (
        f"{{replicas: 1, template: {{spec: {{containers: [{{name: pytorch, image: a/b:1, command: {command}}}]}}}}}}"
    )
    spec = f"{{pytorchReplicaSpecs: {{Master: {replica}, Worker: {replica}}}}}"
    made = import_text(manifest("PyTorchJob", "kubeflow.org/v1", spec), "job.yaml")
    assert (made.job.run, made.job.nodes.max, made.job.procs_per_node) == ("train.py", 2, 2)
    assert "WORLD_SIZE" not in made.text + meanings(made)


def test_macro_without_a_variable_is_reported_as_a_command() -> None:
    shell = POD % 'bash, -c, "torchrun --nnodes=$(WORLD_SIZE) --nproc_per_node=$(nproc) /a/train.py"'
    made = import_text(manifest("Job", "batch/v1", f"{{template: {{spec: {shell}}}}}"), "job.yaml")
    assert "$(WORLD_SIZE): no variable of the manifest, so that the shell runs a command" in meanings(made)


JOB = manifest("Job", "batch/v1", f"{{parallelism: 2, completions: 2, template: {{spec: {POD}}}}}")
JOBSET = manifest(
    "JobSet",
    "jobset.x-k8s.io/v1alpha2",
    f"{{replicatedJobs: [{{name: node, template: {{spec: {{parallelism: 2, completions: 2, "
    f"template: {{spec: {POD}}}}}}}}}]}}",
)
ROLE = "roles: [{entrypoint: env, num_replicas: 2, args: [%s]}]\n"


@pytest.mark.parametrize(
    ("form", "text"), [("kubernetes", JOB), ("kubernetes", JOBSET), ("torchx", ROLE.replace("env", "torchrun"))]
)
def test_torchrun_pods_that_trained_separately_are_reported(form: Format, text: str) -> None:
    first = "" if form == "torchx" else "torchrun, "
    made = import_text(text % f"{first}--nproc_per_node=2, /a/train.py", "file.yaml", form=form)
    assert made.job.nodes.max == 2
    assert "each node trained separately" in meanings(made)
    counted = import_text(text % f"{first}--nnodes=2, --nproc_per_node=2, /a/train.py", "file.yaml", form=form)
    assert "trained separately" not in meanings(counted)


def test_pods_with_standalone_torchrun_are_reported_as_training_separately() -> None:
    template = POD % "torchrun, --standalone, --nproc_per_node=2, /a/train.py"
    spec = f"{{pytorchReplicaSpecs: {{Worker: {{replicas: 2, template: {{spec: {template}}}}}}}}}"
    assert "each node trained separately" in meanings(
        import_text(manifest("PyTorchJob", "kubeflow.org/v1", spec), "a.yaml")
    )


# -- commands before the ranks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("false; echo b; torchrun /a/t.py", 0, "b"),
        ("echo a; false\ntorchrun /a/t.py", 0, "a"),
        ("false && echo b; torchrun /a/t.py", 0, ""),
        ("echo a && false && torchrun /a/t.py", 1, "a"),
        ("false; mkdir d && export A=1 && torchrun /a/t.py", 0, ""),
        ("set -e; false; echo b; torchrun /a/t.py", 1, ""),
        ("set -euo pipefail\nfalse\ntorchrun /a/t.py", 1, ""),
    ],
)
@pytest.mark.parametrize("form", ["kubernetes", "sky"])
def test_ranks_start_after_a_failing_command_if_the_original_did(
    form: Format, script: str, code: int, said: str, tmp_path: Path
) -> None:
    script = script.replace("echo", "/bin/echo").replace("false", "/bin/false")  # echo and false of a shell are dropped
    text = f"run: {script!r}\n" if form == "sky" else JOB % f"bash, -c, {script!r}"
    text = text.replace("'", '"')
    setup = import_text(text, "file.yaml", form=form).job.setup
    assert setup is not None
    done = subprocess.run(["bash", "-c", setup], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (code, said), setup


def test_shell_with_set_e_keeps_it_in_setup() -> None:
    made = import_text(JOB % 'bash, -ec, "git pull; torchrun /a/t.py"', "file.yaml")
    assert made.job.setup == "set -e\n(git pull)\n"
    both = import_text(
        "setup: |\n  set -e\n  false\n  true\nrun: |\n  pkill x\n  torchrun t.py\n", "t.yaml", form="sky"
    )
    assert both.job.setup is not None
    assert subprocess.run(["bash", "-c", both.job.setup]).returncode == 1


# -- scripts of a ConfigMap -------------------------------------------------------------------------------------------

CONFIG = """apiVersion: batch/v1
kind: Job
metadata: {name: small}
spec:
  template:
    spec:
      containers: [{name: a, image: a/b:1, command: %s, volumeMounts: [{name: code, mountPath: /code%s}]}]
      volumes: [{name: code, configMap: {name: scripts}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: scripts}
data: {go.sh: %s, train.py: "print(1)"}
"""
TORCHRUN = '"#!/bin/bash\\ntorchrun --nproc_per_node=2 /a/train.py\\n"'


@pytest.mark.parametrize(
    ("command", "file"), [("[/code/go.sh]", ""), ("[sh, /code/go.sh]", ""), ("[/code]", ", subPath: go.sh")]
)
def test_shell_script_in_a_configmap_is_read_as_part_of_the_command(command: str, file: str) -> None:
    text = CONFIG % (command, file, TORCHRUN)
    made = import_text(text, "job.yaml")
    assert (made.job.run, made.job.procs_per_node) == ("/a/train.py", 2)
    assert [volume.config_map for volume in made.job.volumes] == ["scripts"]
    assert "ConfigMap/scripts: data" in {one.field for one in made.actionable}
    alone = import_text(text.replace(', train.py: "print(1)"', ""), "job.yaml")
    assert (alone.job.run, alone.job.volumes, alone.actionable) == ("/a/train.py", (), made.actionable[:1])


def test_a_shell_script_with_arguments_keeps_them() -> None:
    made = import_text(CONFIG % ("[bash, /code/go.sh, a]", "", '"train $1"'), "job.yaml")
    assert made.job.command == ("bash", "-c", "train $1", "/code/go.sh", "a")


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("[torchrun, /code/train.py]", TORCHRUN),
        ('[bash, -c, "torchrun /code/train.py"]', TORCHRUN),
        ("[bash, /code/go.sh]", '"torchrun /code/train.py"'),
        ("[/code/go.sh]", '"no shebang"'),
        ("[bash, /code/other.sh]", TORCHRUN),
    ],
)
def test_program_in_a_configmap_is_mounted(command: str, script: str) -> None:
    made = import_text(CONFIG % (command, "", script), "job.yaml")
    [volume] = made.job.volumes
    assert (volume.config_map, volume.path) == ("scripts", "/code")
    assert [one.instead for one in made.actionable if one.field.startswith("ConfigMap/scripts")] == [
        "kubectl apply the ConfigMap before the first run"
    ]


# -- variables that the user changes ----------------------------------------------------------------------------------


def trained(made: Imported, **env: str) -> tuple[str, ...]:
    """Returns the arguments of a run with other values in its `env`."""
    return made.job.model_copy(update={"env": {**made.job.env, **env}}).script_argv


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("sky", 'envs: {LR: "0.1", N: "2"}\nrun: torchrun --nproc_per_node=$N train.py --lr $LR --out=/x/${LR}\n'),
        (
            "kubernetes",
            JOB.replace("command:", 'env: [{name: LR, value: "0.1"}], command:')
            % 'bash, -c, "torchrun --nnodes=2 --nproc_per_node=2 train.py --lr $LR --out=/x/$(LR)"',
        ),
        (
            "kubernetes",
            JOB.replace("command:", 'env: [{name: LR, value: "0.1"}], command:')
            % "torchrun, --nnodes=2, --nproc_per_node=2, train.py, --lr, $(LR), --out=/x/$(LR)",
        ),
    ],
)
def test_variable_in_the_arguments_stays_a_variable(form: Format, text: str) -> None:
    made = import_text(text, "file.yaml", form=form)
    assert made.job.procs_per_node == 2
    assert trained(made) == ("train.py", "--lr", "0.1", "--out=/x/0.1")
    assert trained(made, LR="0.5") == ("train.py", "--lr", "0.5", "--out=/x/0.5")


@pytest.mark.parametrize("value", ['""', "null"])
def test_variable_set_at_the_start_stays_in_the_arguments(value: str) -> None:
    made = import_text(
        f"envs: {{START: {value}}}\nrun: torchrun train.py --start ${{START}} --end 5\n", "t.yaml", form="sky"
    )
    assert trained(made, START="3") == ("train.py", "--start", "3", "--end", "5")
    assert [one.instead for one in made.actionable] == ["windlass run --env START=VALUE"]


def test_variable_of_no_or_several_words_is_expanded_and_reported_or_left_to_a_shell() -> None:
    line = 'torchrun train.py $EXTRA_ARGS $MORE "${MORE}"'
    env = 'env: [{name: EXTRA_ARGS, value: ""}, {name: MORE, value: "--a b"}], command:'
    made = import_text(JOB.replace("command:", env) % f"bash, -c, {line!r}", "job.yaml")
    assert trained(made) == ("train.py", "--a", "b", "--a b")
    assert "EXTRA_ARGS, which is empty, and no word in the command" in meanings(made)
    assert "MORE, which is several words in the command" in meanings(made)
    task = import_text(f'envs: {{EXTRA_ARGS: "", MORE: "--a b"}}\nrun: {line}\n', "t.yaml", form="sky")
    assert trained(task)[-1].endswith('exec python3 -u train.py $EXTRA_ARGS $MORE "${MORE}"')


def test_variable_set_by_the_script_is_expanded() -> None:
    made = import_text('envs: {LR: "0.1"}\nrun: export LR=0.2; python train.py $LR\n', "t.yaml", form="sky")
    assert trained(made, LR="0.5") == ("train.py", "0.2")
