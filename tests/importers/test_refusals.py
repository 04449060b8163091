"""Files that cannot be imported are refused with one message that names the line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

import pytest
from tests.importers.shapes import FOLDER

from windlass.errors import JobFileError
from windlass.importers.convert import Format, import_text

JOB = """apiVersion: batch/v1
kind: Job
metadata: {name: a}
spec: {backoffLimit: 0, template: {spec: {restartPolicy: Never, containers: [{image: b, command: [/bin/true]}]}}}
"""
BOMB = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + at)}: &{chr(98 + at)} [*{chr(97 + at)}, *{chr(97 + at)}]\n" for at in range(20)
)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "it is empty", "known kinds are PyTorchJob"),
        ("just words\n", "no document has a kind", "known kinds"),
        ("a: [", "not YAML", ""),
        ("a: 1\na: 2\n", "given twice", "leave one out"),
        (BOMB, "has more than 20000 values", "is this the right file?"),
        ("kind: &k [*k]\n", "*k is an alias of no value before it", "write the value out"),
        ("kind: &k a\n---\nkind: *k\n", "*k is an alias of no value before it", "write the value out"),
        ("spec: {<<: [{a: 1}, 2]}\n", "<< takes no mapping", "write its fields out"),
        ("a: !!python/object/apply:os.system [ls]\n", "is a tag", "without it"),
        (JOB.replace("Job", "PaddleJob"), "found PaddleJob", "under its operator"),
        (
            JOB + "---\n" + JOB.replace("name: a", "name: other", 1),
            "several jobs: Job/a (line 1), Job/other (line 6)",
            "windlass import --document Job/a",
        ),
        (JOB.replace("batch/v1", "batch/v2alpha1"), "is 'batch/v2alpha1', and Job is read in version batch/v1", ""),
        (JOB.replace("command: [/bin/true]", ""), "neither command nor args", "write what the image starts"),
        ("name: a\nrun: echo\n", "is no Kubernetes object", "--sky"),
        ("name: a\nroles: []\n", "is no Kubernetes object", "--torchx"),
        ("spec:\n  replicas: {{ .Values.n }}\n", "{{ .Values.n }} is a placeholder of Helm", "helm template"),
        ("a: " + "[" * 60 + "]" * 60, "levels deep", ""),
        ("x" * (1 << 20) + "yz", "characters", "is this the right file?"),
        (JOB + "\x07", "U+0007", ""),
    ],
)
def test_file_without_exactly_one_job_is_refused(text: str, message: str, hint: str) -> None:
    begun = time.process_time()
    with pytest.raises(JobFileError) as refused:
        import_text(text, "file.yaml")
    assert time.process_time() - begun < 20
    said = [(problem.message, problem.hint) for problem in refused.value.problems]
    assert any(message in one and hint in other for one, other in said), said
    assert all(problem.where.startswith("file.yaml") for problem in refused.value.problems)


@pytest.mark.parametrize(
    ("form", "text", "message"),
    [
        ("sky", "name: a\n", "has no run:"),
        ("sky", "- 1\n", "holds no mapping"),
        ("sky", "name: a\nrun: x\n---\nname: b\nrun: y\n", "holds 2 documents"),
        ("torchx", "name: a\n", "there are no roles"),
        ("torchx", "roles: [{name: a, image: b}]\n", "starts nothing"),
    ],
)
def test_file_without_a_task_or_appdef_is_refused(form: Format, text: str, message: str) -> None:
    with pytest.raises(JobFileError, match=message):
        import_text(text, "file.yaml", form=form)


def test_pipeline_of_one_task_may_start_with_a_name_document() -> None:
    made = import_text("name: whole\n---\nname: part\nrun: python train.py\n", "task.yaml", form="sky")
    assert (made.job.name, made.job.run) == ("part", "train.py")


def test_name_option_overrides_the_manifest() -> None:
    assert import_text(JOB, "file.yaml", name="mine").job.name == "mine"
    with pytest.raises(JobFileError, match="not a legal name"):
        import_text(JOB, "file.yaml", name="Not Mine")


def test_kubectl_list_is_read_like_the_single_object() -> None:
    [path] = FOLDER.glob("h16*")
    assert import_text(path.read_text(), "list.yaml").job.name == "seen"


TOKEN = "hf_neverinanyjobfile00000000000000000"
SHELL = "for i in 1 2; do python train.py | tee log; done"


@pytest.mark.parametrize(
    ("lines", "at", "variable"),
    [
        (f"run: python train.py --api-key {TOKEN}\n", 1, "HF_TOKEN"),
        (f"setup: |\n  pip install x\n  huggingface-cli login --token {TOKEN}\nrun: python train.py\n", 3, "HF_TOKEN"),
        ("setup: wandb login --relogin neverinanyjobfile00000000000\nrun: python train.py\n", 1, "WANDB_API_KEY"),
        (
            "setup: wandb login 'neverinanyjobfile00000000000' && pip install x\nrun: python train.py\n",
            1,
            "WANDB_API_KEY",
        ),
        (f"run: |\n  export HF_TOKEN={TOKEN}\n  {SHELL}\n", 2, "HF_TOKEN"),
        (f"run: |\n  export WANDB_API_KEY='neverinanyjobfile'\n  {SHELL}\n", 2, "WANDB_API_KEY"),
        (f"run: HF_TOKEN={TOKEN} python train.py --token $HF_TOKEN\n", 1, "HF_TOKEN"),
        (f"setup: git clone https://me:neverinanyjobfile@example.com/x.git\nrun: |\n  {SHELL}\n", 1, "URL_PASSWORD"),
        (f"setup: git clone https://$NAME:neverinanyjobfile@example.com/x.git\nrun: |\n  {SHELL}\n", 1, "URL_PASSWORD"),
        ("run: |\n  python train.py --db-password=neverinanyjobfile00 | tee log\n", 2, "DB_PASSWORD"),
    ],
)
def test_script_with_a_secret_is_refused_without_showing_the_value(lines: str, at: int, variable: str) -> None:
    with pytest.raises(JobFileError) as refused:
        import_text(lines, "task.yaml", form="sky")
    [problem] = refused.value.problems
    assert problem.where == f"task.yaml:{at}"
    assert "looks like a secret" in problem.message
    assert problem.hint.startswith(f"write ${variable} in its place, or take it out; ")
    assert "neverinanyjobfile" not in str(refused.value)


@pytest.mark.parametrize(
    "script",
    [
        "export HF_TOKEN=$MY_TOKEN; wandb login $WANDB_API_KEY; python train.py --token ${HF_TOKEN} | tee log",
        'huggingface-cli login --token "$HF_TOKEN"; python train.py --eos-token END | tee log',
        "sky login; aws ecr login --region us-east-1; python train.py --tokenizer gpt2-0123456789abcdef | tee log",
        "python -c \"login('${HF_TOKEN}', add_to_git_credential=True)\"; python train.py | tee log",
        "python -c \"login(token=os.environ['HF_TOKEN']); key=get_key()\"; python train.py | tee log",
        "pip install git+https://me:$GH_TOKEN@h/x.git https://${ME}:${T:-}@h/x https://m:x$T@h/; python a.py | tee x",
        'export HF_TOKEN=$(cat /run/secrets/hf); export HF_TOKEN="${HF_TOKEN}"; python train.py | tee log',
    ],
)
def test_script_that_uses_secret_variables_is_imported(script: str) -> None:
    assert import_text(f"run: |\n  {script}\n", "task.yaml", form="sky").job.command is not None


@pytest.mark.parametrize("blank", ["[YOUR-KEY]", "your_key_here", "xxxx"])
def test_secret_placeholder_in_a_script_is_refused_with_its_variable(blank: str) -> None:
    task = f"run: |\n  export WANDB_API_KEY={blank}\n  {SHELL}\n"
    with pytest.raises(JobFileError, match="gives WANDB_API_KEY a blank to be filled in") as refused:
        import_text(task, "task.yaml", form="sky")
    assert refused.value.problems[0].hint.endswith("add secrets: [wandb-api-key]")


@pytest.mark.parametrize("value", ["''", "'[YOUR-KEY]'", "<your key>", "'${WANDB_API_KEY}'", "changeme"])
def test_secret_variable_without_a_value_becomes_a_secret_of_the_job(value: str) -> None:
    pod = JOB.replace("image: b", f"image: b, env: [{{name: WANDB_API_KEY, value: {value}}}]")
    task = f"envs: {{WANDB_API_KEY: {value}, HF_TOKEN: null}}\nrun: python train.py\n"
    made = import_text(pod, "file.yaml")
    assert (made.job.secrets, dict(made.job.env)) == (("wandb-api-key",), {})
    assert not [one for one in made.actionable if "contains the value of a secret" in one.meaning]
    made = import_text(task, "task.yaml", form="sky")
    assert (set(made.job.secrets), dict(made.job.env)) == ({"wandb-api-key", "hf-token"}, {})
    assert not [one for one in made.actionable if "--env" in one.instead]


@pytest.mark.parametrize(
    ("line", "variable"),
    [
        ("train.py --password hunter2", "PASSWORD"),
        ("train.py --db-password=123456 --x", "DB_PASSWORD"),
        ("train.py --db-password '!never again' --x", "DB_PASSWORD"),
        ("train.py '--secret=a&b'", "SECRET"),
    ],
)
def test_short_password_in_a_command_is_refused(line: str, variable: str) -> None:
    with pytest.raises(JobFileError, match="looks like a secret") as refused:
        import_text(f"run: python {line}\n", "task.yaml", form="sky")
    assert refused.value.problems[0].hint.startswith(f"write ${variable} in its place")


@pytest.mark.parametrize(
    "line",
    [
        "--password $DB_PASSWORD",
        "--password <your-password>",
        "--password /run/secrets/db",
        "--credentials conf/gcs.json",
        "--ask-password --epochs 3",
        "--no-password",
        "--password none",
        "--api-key abc123 --eos-token END",
    ],
)
def test_option_without_the_value_of_a_secret_is_imported(line: str) -> None:
    task = f"run: |\n  python train.py {line} | tee log\n  python b.py\n"
    assert import_text(task, "task.yaml", form="sky").job.command


def test_secrets_in_container_commands_are_refused() -> None:
    words = f"[python, train.py, --hf-token, {TOKEN}]"
    with pytest.raises(JobFileError, match=r"file\.yaml:4: run: holds what looks like a secret"):
        import_text(JOB.replace("[/bin/true]", words), "file.yaml")


@pytest.mark.parametrize(
    ("form", "text", "message"),
    [
        (
            "sky",
            "run: python train.py\nnum_nodes: '2'\n",
            "file.yaml:2: num_nodes: expected a whole number from 1, found '2'",
        ),
        ("sky", "run: python train.py\nnum_nodes: two\n", "found 'two'"),
        ("sky", "run: python train.py\nnum_nodes: 0\n", "found 0"),
        ("sky", "run: [python, train.py]\n", "run: expected text, found a list"),
        (
            "torchx",
            "roles: [{entrypoint: a, num_replicas: '2'}, {entrypoint: b}]\n",
            "a whole number from 1, found '2'",
        ),
    ],
)
def test_node_count_or_command_of_the_wrong_type_is_refused(form: Format, text: str, message: str) -> None:
    with pytest.raises(JobFileError, match=re.escape(message)):
        import_text(text, "file.yaml", form=form)


def test_value_of_the_wrong_type_is_reported_with_the_expected_type() -> None:
    text = JOB.replace("backoffLimit: 0", "backoffLimit: '3'")
    assert [(one.field, one.meaning) for one in import_text(text, "file.yaml").unmapped] == [
        ("spec.backoffLimit", "expected a whole number, found '3'")
    ]
    task = "run: python train.py\nsetup: [pip install x]\nsecrets: [A]\nresources: {memory: lots, cpus: 4GB}\n"
    assert [(one.field, one.meaning) for one in import_text(task, "task.yaml", form="sky").unmapped] == [
        ("setup", "expected text, found a list"),
        ("secrets", "expected a mapping, found a list"),
        ("resources.memory", "expected a size such as 32, 32+ or 32GB, found 'lots'"),
        ("resources.cpus", "expected a number such as 4 or 4+, found '4GB'"),
    ]


def test_memory_per_cpu_is_not_read_as_total_memory() -> None:
    made = import_text("run: python train.py\nresources: {cpus: 16, memory: 4x}\n", "task.yaml", form="sky")
    assert made.job.resources.memory is None
    assert [one.meaning for one in made.actionable] == ["expected a size such as 32, 32+ or 32GB, found '4x'"]


@pytest.mark.parametrize(
    ("memory", "mebibytes"),
    [("32", 32 << 10), ("32+", 32 << 10), ("32GB", 32 << 10), ("64GB+", 64 << 10), ("1024MB", 1024), ("1TB", 1 << 20)],
)
def test_memory_of_a_task_may_have_a_unit(memory: str, mebibytes: int) -> None:
    made = import_text(f"run: python train.py\nresources: {{memory: {memory}}}\n", "task.yaml", form="sky")
    assert made.job.resources.memory == mebibytes << 20
    assert not made.actionable


def test_omitted_secret_is_advised_to_be_stored_on_the_target() -> None:
    task = import_text("secrets: {HF_TOKEN: null, own_key: null}\nrun: python train.py\n", "task.yaml", form="sky")
    assert task.job.secrets == ("hf-token",)  # a secret's variable is upper case, so no secret provides own_key
    assert task.unmapped[0].instead == (
        "secrets: [hf-token], and on this machine export HF_TOKEN=…, "
        "on a cluster kubectl create secret generic hf-token --from-literal=HF_TOKEN=…"
    )
    started = '"AlgorithmSpecification": {"ContainerEntrypoint": ["python", "/a.py"]}'
    described = f'{{"TrainingJobName": "a", {started}, "Environment": {{"HF_TOKEN": "x1"}}}}'
    _, left = [one for one in import_text(described, "saved.json").unmapped if "HF_TOKEN" in one.field]
    assert left.instead.startswith("secrets: [hf-token], and aws secretsmanager create-secret --name hf-token ")
    assert left.instead.endswith("""--secret-string '{"HF_TOKEN": "…"}'""")
    login = "[sh, -c, wandb login neverinanyjobfile00000 && torchrun train.py]"
    made = import_text(JOB.replace("[/bin/true]", login), "file.yaml")
    assert any("wandb-api-key --from-literal=WANDB_API_KEY=…" in one.instead for one in made.unmapped)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("sky", f"secrets: {{HF_TOKEN: {TOKEN}}}\nrun: python train.py\n"),
        ("sky", f"envs: {{HF_TOKEN: {TOKEN}}}\nrun: python train.py\n"),
        ("torchx", f"roles: [{{entrypoint: a, env: {{HF_TOKEN: {TOKEN}}}}}]\n"),
        ("kubernetes", JOB.replace("image: b", f"image: b, env: [{{name: HF_TOKEN, value: {TOKEN}}}]")),
        ("kubernetes", JOB + f"---\napiVersion: v1\nkind: Secret\nmetadata: {{name: b}}\nstringData: {{a: {TOKEN}}}\n"),
    ],
)
def test_importing_a_file_with_a_secret_advises_to_ignore_the_file(form: Format, text: str) -> None:
    made = import_text(text, "file.yaml", form=form)
    assert [one.instead for one in made.actionable if "contains the value of a secret" in one.meaning] == [
        "move it to another folder, or name it in .windlassignore"
    ]
    assert "neverinanyjobfile" not in f"{made.text}{made.unmapped}"
    without = import_text(text.replace(TOKEN, "''").replace("kind: Secret", "kind: Service"), "file.yaml", form=form)
    assert not [one for one in without.actionable if "contains the value of a secret" in one.meaning]


@pytest.mark.parametrize(
    ("run", "is_alone"),
    [
        ("torchrun --nproc_per_node 2 train.py", True),
        ("deepspeed --num_gpus 2 train.py", True),
        ("cd app && torchrun --nproc_per_node 2 train.py --lr $((1+1))", True),
        ("torchrun --nnodes $SKYPILOT_NUM_NODES --nproc_per_node 2 train.py", False),
        ("torchrun --nnodes=$N --nproc_per_node 2 train.py", False),
        ("accelerate launch --num_machines 2 --num_processes 4 train.py", False),
        ("python train.py | tee log", False),
    ],
)
def test_nodes_that_trained_separately_and_would_train_together_are_reported(run: str, is_alone: bool) -> None:
    left = import_text(f"num_nodes: 2\nrun: {run}\n", "task.yaml", form="sky").actionable
    assert any("trained separately" in one.meaning for one in left) == is_alone
    assert not import_text(
        "num_nodes: 1\nrun: torchrun --nproc_per_node 2 train.py\n", "task.yaml", form="sky"
    ).actionable


@pytest.mark.parametrize("run", ["torchrun train.py", "|\n  cd app\n  torchrun train.py --lr $((1+1))"])
def test_torchrun_without_a_rank_count_starts_one_rank_unless_an_operator_sets_it(run: str) -> None:
    task = import_text(f"resources: {{accelerators: A100:4}}\nrun: {run}\n", "task.yaml", form="sky")
    assert (task.job.procs_per_node, task.actionable) == (1, ())
    role = "roles: [{entrypoint: torchrun, args: [train.py], resource: {gpu: 4}}]\n"
    assert import_text(role, "app.yaml", form="torchx").job.procs_per_node == 1
    started = '"AlgorithmSpecification": {"ContainerEntrypoint": ["torchrun", "/train.py"]}'
    made = import_text(f'{{"TrainingJobName": "a", {started}}}', "saved.json")
    assert made.job.procs_per_node == 1
    assert not [one for one in made.unmapped if "core" in one.meaning]
    all_gpus = "resources: {accelerators: A100:4}\nrun: accelerate launch train.py\n"
    assert import_text(all_gpus, "task.yaml", form="sky").job.procs_per_node == "auto"


def test_the_hints_are_read_in_every_locale() -> None:
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    reads = "from windlass.importers.field_hints import hints; hints('other kind')"
    subprocess.run([sys.executable, "-c", reads], env=ascii_only, check=True)


@pytest.mark.parametrize(
    "field",
    [
        "initContainers: [{name: i, image: a/b:1, command: [mysql, --password, neverinanyjobfile]}]",
        "containers: [{image: b, command: [python, a.py], lifecycle: {preStop: {exec: "
        "{command: [sh, -c, 'DB_PASSWORD=neverinanyjobfile ./stop']}}}}]",
    ],
)
def test_secrets_in_other_commands_of_the_pods_are_refused(field: str) -> None:
    text = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\nspec: {backoffLimit: 0, template: {spec: {"
    rest = "" if field.startswith("containers") else "containers: [{image: b, command: [python, a.py]}], "
    with pytest.raises(JobFileError, match="looks like a secret") as refused:
        import_text(f"{text}\n  restartPolicy: Never, {rest}\n  {field}}}}}}}\n", "file.yaml")
    assert "neverinanyjobfile" not in str(refused.value)
    [problem] = refused.value.problems
    assert problem.where == "file.yaml:6"
    assert problem.field.startswith("kubernetes.pod")
