from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from windlass.errors import JobFileError
from windlass.spec.job import Job
from windlass.spec.job_fields import JobFields
from windlass.spec.names import legal_name
from windlass.spec.parse import parse_job
from windlass.spec.sections import NodeRange, Resources


def test_job_in_python_has_the_field_names_of_the_file() -> None:
    job = Job(name="digits", run="train.py", nodes=2, timeout="2h", resources=Resources(gpus=1), restarts=3)
    assert (job.nodes, job.timeout, job.resources.gpus, job.restarts.max) == (NodeRange(min=2, max=2), 7200, 1, 3)


def test_type_checkers_know_the_keywords_of_a_job() -> None:
    assert list(JobFields.__annotations__) == list(Job.model_fields)


def test_model_copy_validates_the_updated_fields() -> None:
    job = Job(name="digits", run="train.py", resources={"gpus": 1})
    copy = job.model_copy(update={"nodes": 2, "timeout": "2h"})
    assert copy == Job(name="digits", run="train.py", resources={"gpus": 1}, nodes=2, timeout="2h")
    assert (job.launcher, copy.launcher) == ("plain", "torchrun")
    with pytest.raises(JobFileError, match="node: not a field"):
        job.model_copy(update={"node": 2})
    with pytest.raises(JobFileError, match=r"Job: expected a mapping, found a list .*write for example update="):
        job.model_copy(update=["nodes"])  # type: ignore[arg-type]
    with pytest.raises(JobFileError, match="Job: 2: not a field"):
        job.model_copy(update={2: "nodes"})  # type: ignore[dict-item]


def test_a_bad_job_object_raises_the_error_of_a_bad_file() -> None:
    with pytest.raises(JobFileError) as caught:
        Job(name="a b", run="train.py", num_nodes=2, nodes=0)  # type: ignore[call-arg]
    assert [problem.field for problem in caught.value.problems] == ["name", "num_nodes", "nodes"]
    assert caught.value.problems[0].where == "Job"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("start", "launcher", "kind"),
    [
        ({"run": "train.py --epochs 5"}, "plain", "script"),
        ({"run": "train.py", "launcher": "torchrun"}, "torchrun", "script"),
        ({"run": "'my folder/train.py'", "procs_per_node": 2}, "torchrun", "script"),
        ({"run": "-m package.train -x", "nodes": {"min": 1, "max": 2}}, "torchrun", "module"),
        ({"run": "train.py", "procs_per_node": "auto"}, "torchrun", "script"),
        ({"run": "./train.sh"}, "plain", "program"),
        ({"command": ["python", "train.py"]}, "plain", "program"),
        ({"run": "train.py", "launcher": "mpi"}, "mpi", "script"),
        ({"run": "./prog", "launcher": "torchrun"}, "torchrun", "program"),
        ({"command": ["./prog"], "launcher": "mpi"}, "mpi", "program"),
    ],
)
def test_default_launcher_follows_from_the_program(start: dict[str, Any], launcher: str, kind: str) -> None:
    job = Job(name="a", **start)
    assert (job.launcher, job.script_kind) == (launcher, kind)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "run: required field missing"),
        ({"command": []}, "command"),
        ({"command": [""]}, "command: begins with an empty word"),
        ({"command": "train.py"}, "command: expected a list, found text"),
        ({"run": "  "}, "run: is empty"),
        ({"run": "-m"}, "run: has no module after -m"),
        ({"run": "-c pass"}, "run: begins with the option '-c'"),
        ({"run": "a" * 200_000}, "run: is 200000 bytes long"),
        ({"command": []}, "command: is empty"),
        ({"command": [3]}, 'command[0]: expected text, found 3 (write "3")'),
        ({"command": ["a"], "launcher": "torchrun"}, "launcher: is torchrun, which does not start a command"),
        ({"run": "a.py", "launcher": "mpi", "nodes": {"min": 1, "max": 2}}, "nodes: is a range"),
        ({"run": "a.py", "secrets": {"a"}}, "secrets: expected a list, found a set"),
        ({"run": b"a.py"}, "run: expected text, found a bytes"),
        ({"run": "a.py", "code": PurePosixPath(".")}, "code: expected text, found a PurePosixPath (give str() of it)"),
        ({"run": "a.py", "nodes": 10**5000}, "nodes: must be at most 100000"),
        ({"run": "a.py", "checkpoint": {"folder": "/data"}}, "checkpoint.folder: is /data, and checkpoints are kept"),
        (
            {"run": "a.py", "checkpoint": {"folder": "s3://b", "find": "*", "resume": "-r {path}"}},
            "checkpoint.find: cannot be used with folder",
        ),
        (
            {"run": "a.py", "checkpoint": {"find": "*", "resume": "-r {pat}"}},
            "checkpoint.resume: has {pat}, and only {path} is replaced",
        ),
        ({"run": "a.py", "env": {"A": None}}, "env.A: expected text, found nothing"),
        ({"run": "a.py", "env": {"A": "\0"}}, "env.A: holds a NUL character"),
        ({"run": "a.py", "env": {"WINDLASS_X": "1"}}, "env.WINDLASS_X: set by Windlass"),
    ],
)
def test_invalid_jobs_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(JobFileError) as caught:
        Job(name="a", **fields)
    (problem,) = caught.value.problems
    assert says in str(problem)


TOKEN = "ghp_" + "a1" * 18


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"annotations": {"a": TOKEN}}, "annotations.a"),
        ({"annotations": {"example.com/api-key": "0123456789abcdef"}}, "annotations.example.com/api-key"),
        ({"limits": {"cpu": TOKEN}}, "limits.cpu"),
        ({"pod": TOKEN}, "pod"),
        ({"capabilities": [TOKEN]}, "capabilities[0]"),
        ({"pod": {"spec": {"x": {"clientSecret": "hunter2hunter2"}}}}, "pod.spec.x.clientSecret"),
    ],
)
def test_secrets_in_options_of_pods_are_refused_and_not_shown(options: dict[str, Any], field: str) -> None:
    with pytest.raises(JobFileError, match="looks like a secret") as caught:
        Job(name="a", run="a.py", kubernetes=options)
    [problem] = caught.value.problems
    assert problem.field == f"kubernetes.{field}"
    assert not any(secret in str(caught.value) for secret in (TOKEN, "hunter2", "0123456789"))


def test_field_that_names_a_secret_is_no_secret() -> None:
    source = {
        "csi": {"driver": "d", "nodePublishSecretRef": {"name": "login"}, "volumeAttributes": {"secretName": "x"}}
    }
    Job(name="a", run="a.py", volumes=[{"source": source, "path": "/x"}], kubernetes={"annotations": {"token": "true"}})


@pytest.mark.parametrize(
    ("volume", "says"),
    [
        ({"config_map": "Aä"}, "config_map: 'Aä' is not a legal name"),
        ({"source": {"nfs": {"path": f"/{TOKEN}"}}}, "source.nfs.path: looks like a secret"),
        ({"source": {"csi": {"volumeAttributes": {"password": "hunter2"}}}}, "source.csi.volumeAttributes.password"),
        ({"source": {"emptyDir": {}, "hostPath": {}}}, "expected one volume source, found emptyDir and hostPath"),
        ({"source": {"emptyDir": None}}, "expected one volume source, found emptyDir: nothing"),
        ({"claim": "a", "path": "/windlass/boot"}, "path: is below /windlass"),
        ({"claim": "a", "path": "//windlass/."}, "path: is below /windlass"),
        ({"claim": "a", "path": "/dev/shm"}, "use resources.shm"),
    ],
)
def test_bad_volume_gets_one_message(volume: dict[str, Any], says: str) -> None:
    with pytest.raises(JobFileError, match=re.escape(says)) as caught:
        Job(name="a", run="a.py", volumes=[{"path": "/x", **volume}])
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"node_labels": {"a": "b"}}, "did you mean node_selector?"),
        ({"tolerations": [{"value": "b"}]}, "there is no key"),
        ({"tolerations": [{"key": "a", "seconds": 5}]}, "set effect: NoExecute"),
        ({"pod": {"spec": {"priority": float("nan")}}}, "pod.spec.priority: expected a finite number"),
        ({"pod": {"spec": {"x": [b"a"]}}}, "pod.spec.x[0]: expected a value that JSON has, found a bytes"),
    ],
)
def test_options_that_the_api_server_would_refuse(options: dict[str, Any], says: str) -> None:
    with pytest.raises(JobFileError, match=re.escape(says)):
        Job(name="a", run="a.py", kubernetes=options)


def test_cross_field_checks_run_even_if_other_fields_are_invalid() -> None:
    with pytest.raises(JobFileError) as caught:
        Job(
            name="?",
            command=["a"],
            launcher="torchrun",
            nodes=0,
            local={"rate": "1gbit", "port": 0},
            resources={"cpus": "x", "gpu_type": "T4"},
        )
    assert [problem.field for problem in caught.value.problems] == [
        "name",
        "launcher",
        "nodes",
        "local.rate",
        "local.port",
        "resources.cpus",
        "resources.gpu_type",
    ]


def test_multi_line_run_is_split_as_a_shell_would() -> None:
    job = Job(name="a", run="train.py \\\n  --text 'two\\\nlines' \\\n  --path a\\ b\n")
    assert job.script_argv == ("train.py", "--text", "two\\\nlines", "--path", "a b")


def test_job_is_immutable() -> None:
    job = Job(name="a", run="a.py")
    with pytest.raises(ValidationError):
        job.nodes = NodeRange(min=2, max=2)  # type: ignore[misc]


def test_numbers_in_env_become_text() -> None:
    assert Job(name="a", run="a.py", env={"A": 1, "B": 0.5, "C": "x"}).env == {"A": "1", "B": "0.5", "C": "x"}


@given(st.text(max_size=80))
def test_every_text_can_be_converted_to_a_valid_name(text: str) -> None:
    assert Job(name=legal_name(text), run="a.py").name == legal_name(legal_name(text))


def test_reading_a_job_loads_no_yaml_no_plugins_and_no_module_of_another_package() -> None:
    code = (
        "import sys, windlass.spec.job, windlass.spec.commandline, windlass.spec.parse\n"
        "windlass.spec.job.Job(name='a', run='a.py')\n"
        "others = ('ruamel.', 'torch', 'rich', 'click', 'pydantic.plugin._loader', 'importlib.metadata')\n"
        "print(sorted(m for m in sys.modules if m.startswith(others)\n"
        "             or m.startswith('windlass.')\n"
        "             and not m.startswith(('windlass.spec', 'windlass.errors'))\n"
        "             and m not in ('windlass.stores', 'windlass.stores.gs_az', 'windlass.stores.url')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("run", "fields"),
    [
        ("python train.py --epochs 5", {"run": "train.py --epochs 5"}),
        ("python3 -m package.train", {"run": "-m package.train"}),
        ("python3.11 'a b.py' --lr $LR", {"run": "'a b.py' --lr $LR", "python": "python3.11"}),
        ("python -u \\\n  train.py '$X'", {"run": "train.py '$X'", "env": {"PYTHONUNBUFFERED": "1", "LR": "1"}}),
        ("python $SCRIPT", {"run": "$SCRIPT"}),
    ],
)
def test_python_in_run_starts_the_script_as_on_the_command_line(run: str, fields: dict[str, Any]) -> None:
    env = {"LR": "1", **({"SCRIPT": "train.py"} if "SCRIPT" in run else {})}
    job = Job(name="a", run=run, env=env, nodes=2)
    assert job == Job(**{"name": "a", "env": env, "nodes": 2, **fields})
    assert job.launcher == "torchrun"
    assert parse_job(f"name: a\nrun: {json.dumps(run)}\nenv: {json.dumps(env)}\nnodes: 2\n", "job.yaml") == job
    assert Job(name="a", run=run, env=env, nodes=2, launcher="plain").launcher == "plain"


def test_python_and_interpreter_of_the_job_are_kept() -> None:
    job = Job(name="a", run="python3.11 -u train.py", python="/x/python", env={"PYTHONUNBUFFERED": "0"})
    assert (job.python, job.env) == ("/x/python", {"PYTHONUNBUFFERED": "0"})


@pytest.mark.parametrize(
    "run",
    [
        "python -c 'print(1)'",
        "python",
        "python -X dev train.py",
        "python -m torch.distributed.run train.py",
        "/opt/x/bin/python train.py",
        "pythonic train.py",
    ],
)
def test_other_lines_of_python_are_programs(run: str) -> None:
    job = Job(name="a", run=run, nodes=2)
    assert (job.run, job.launcher, job.script_kind) == (run, "plain", "program")
