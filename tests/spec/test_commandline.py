from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.errors import JobFileError
from windlass.spec.commandline import job_from_command, job_from_script
from windlass.spec.job import Job


def job(**fields: Any) -> Job:
    return Job(**{"name": "train", "run": "train.py", **fields})


@pytest.mark.parametrize(
    ("line", "same_as"),
    [
        ("torchrun train.py", job()),
        (
            "torchrun --nproc-per-node 2 --nnodes 2 train.py --epochs 5",
            job(run="train.py --epochs 5", nodes=2, procs_per_node=2),
        ),
        ("torchrun --nproc_per_node=2 --nnodes=1:4 train.py", job(nodes={"min": 1, "max": 4}, procs_per_node=2)),
        ("torchrun --standalone --nproc-per-node gpu train.py", job(procs_per_node="auto")),
        ("torchrun --standalone --nnodes=1 --nproc_per_node=auto train.py", job(procs_per_node="auto")),
        ("torchrun --max-restarts 3 --shutdown-timeout 60 train.py", job(restarts=3, grace=60)),
        (
            "torchrun --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --master-port 29501 train.py",
            job(nodes=2, local={"port": 29501}),
        ),
        (
            "torchrun --rdzv-backend c10d --rdzv_endpoint=h:29400 --rdzv-id 7 --rdzv-conf a=9 --nnodes 2 train.py",
            job(nodes=2),
        ),
        ("torchrun -m train --nnodes 7", job(run="-m train --nnodes 7")),
        ("torchrun --module pkg.sub.train", job(name="sub", run="-m pkg.sub.train")),
        ("torchrun --no-python ./train -x", job(run="./train -x", launcher="torchrun")),
        ("torchrun -- train.py", job()),
        ("/opt/env/bin/torchrun train.py", job(python="/opt/env/bin/python3")),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py", job(procs_per_node=2)),
        (".venv/bin/python -m torch.distributed.run train.py", job(python=".venv/bin/python")),
        ("python3 -m torch.distributed.launch --use_env --nproc_per_node=2 train.py", job(procs_per_node=2)),
        ("python train.py --lr 1e-3", job(run="train.py --lr 1e-3")),
        ("python3.12 train.py", job(python="python3.12")),
        ("python -u -O train.py", job(env={"PYTHONUNBUFFERED": "1", "PYTHONOPTIMIZE": "1"})),
        ("python -m train -x", job(run="-m train -x")),
        ("./train.py -x", job(run="./train.py -x")),
        ("mpirun -np 4 python train.py -x", job(run="train.py -x", launcher="mpi", procs_per_node=4)),
        (
            "mpirun --allow-run-as-root --oversubscribe -n 2 -x A=b -x C=d=e -mca btl ^openib python3 -u train.py",
            job(
                launcher="mpi",
                procs_per_node=2,
                env={"PYTHONUNBUFFERED": "1", "A": "b", "C": "d=e", "OMPI_MCA_btl": "^openib"},
            ),
        ),
        ("mpiexec -n 2 ./train 5", job(run="./train 5", launcher="mpi", procs_per_node=2)),
        ("horovodrun -np 2 python train.py", job(launcher="mpi", procs_per_node=2)),
        (
            "accelerate launch --num_processes 4 --num_machines 2 --mixed_precision=bf16 --multi_gpu train.py",
            job(nodes=2, procs_per_node=2, env={"ACCELERATE_MIXED_PRECISION": "bf16"}),
        ),
    ],
)  # fmt: skip
def test_a_launcher_line_becomes_a_job(line: str, same_as: Job) -> None:
    assert job_from_command(shlex.split(line)) == same_as


@pytest.mark.parametrize(
    "line",
    ["bash -c 'python train.py'", "./prog x", "python -X dev train.py", "python -c 'print(1)'", "deepspeed a.py"],
)
def test_any_other_line_is_a_command_word_by_word(line: str) -> None:
    made = job_from_command(shlex.split(line))
    assert (made.command, made.run, made.launcher) == (tuple(shlex.split(line)), None, "plain")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("torchrun --log-dir x --role r -r 3 -t3 --foo 1.py train.py", ["--log-dir", "--role", "-r", "-t", "--foo"]),
        ("torchrun --nproc-per-nod 2", ["is not an option of torchrun (did you mean --nproc-per-node?)"]),
        ("torchrun", ["no script is named (give for example: torchrun train.py)"]),
        ("torchrun --nnodes", ["--nnodes: takes 1 value", "no script"]),
        ("torchrun --nnodes 0 train.py", ["--nnodes: expected a whole number from 1, found '0'"]),
        ("torchrun --nnodes 4:1 train.py", ["nodes.max: is below min"]),
        ("torchrun --nproc-per-node cpu train.py", ["write the number of ranks"]),
        ("torchrun --standalone --nnodes 2 train.py", ["--standalone: means one node"]),
        ("torchrun --rdzv-backend etcd train.py", ["expected c10d or static, found 'etcd'"]),
        ("torchrun train", ["'train' is not the name of a Python script (let its name end in .py, or add --no-python"]),
        ("torchrun --no-python train.py", ["--no-python: starts train.py without Python"]),
        ("torchrun --master-port 70000 train.py", ["local.port: must be at most 65535"]),
        ("python -m torch.distributed.launch --nproc_per_node 2 train.py", ["--use-env: is missing"]),
        (
            "mpirun -H a:2,b:2 --hostfile h -bind-to none -map-by slot -x PATH python train.py",
            ["-H: ", "--hostfile: ", "-bind-to: ", "-map-by: ", "-x PATH: has no value", "-np: is missing"],
        ),
        ("mpirun -np 2 a : -np 2 b", [":: starts several programs"]),
        ("mpirun -np 2", ["no program is named"]),
        ("mpirun -np 2 -x HF_TOKEN=hunter2hunter2 python train.py", ["env.HF_TOKEN: looks like a secret"]),
        ("horovodrun -np 2 --gloo python train.py", ["--gloo: is not supported"]),
        ("accelerate launch train.py", ["--num_processes: is missing"]),
        ("accelerate launch --config_file c --num_processes 3 --num_machines 2 a.py", ["--config_file", "not divide"]),
        ("", ["the command is empty"]),
    ],
)  # fmt: skip
def test_what_would_be_lost_is_refused_by_name(line: str, says: list[str]) -> None:
    with pytest.raises(JobFileError) as caught:
        job_from_command(shlex.split(line))
    said = [str(problem) for problem in caught.value.problems]
    assert len(said) == len(says)
    assert all(words in text for words, text in zip(says, said, strict=True)), said
    assert all("hunter2" not in text for text in said)


def test_mpirun_takes_the_value_of_a_variable_from_the_environment_that_is_passed_in() -> None:
    made = job_from_command(shlex.split("mpirun -np 2 -x LEVEL python train.py"), environ={"LEVEL": "3"})
    assert made.env == {"LEVEL": "3"}


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("finetune.py", "finetune"),
        ("train.py", "train"),
        ("examples/01_digits/train.py", "job-01-digits"),
        ("../My Run/main.py", "my-run"),
        ("/a/b/eval_v2.py", "eval-v2"),
        ("__main__.py", "main"),
        ("日本.py", "job"),
        (f"{'x' * 80}.py", "x" * 40),
    ],
)
def test_a_job_is_named_after_its_script_or_its_folder(script: str, name: str) -> None:
    assert job_from_script(script).name == name
    assert job_from_command(["python", script]).name == name


def test_a_name_that_is_given_wins_and_is_checked() -> None:
    assert job_from_script("train.py", name="mine").name == "mine"
    with pytest.raises(JobFileError, match="command line: name: 'a/b' is not a legal name"):
        job_from_command(["torchrun", "train.py"], name="a/b")


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"))))
def test_arguments_survive_exactly(args: list[str]) -> None:
    for made in (
        job_from_script("my script.py", args),
        job_from_command(["torchrun", "--nnodes", "2", "my script.py", *args]),
        job_from_command(["mpirun", "-np", "2", "python", "my script.py", *[arg for arg in args if arg != ":"]]),
    ):
        want = [arg for arg in args if arg != ":"] if made.launcher == "mpi" else args
        assert made.script_argv == ("my script.py", *want)


_words = st.one_of(
    st.sampled_from(["torchrun", "mpirun", "horovodrun", "accelerate", "launch", "python", "torch.distributed.run"]),
    st.sampled_from(
        ["-m", "--nnodes", "--", "-", "-np", "-x", "train.py", "2", "1:4", "--standalone", "-u", "=", "--="]
    ),
    st.sampled_from(["-r3", "--nnodes=", "--nproc_per_node=2", "-mca"]),
    st.text(max_size=6),
)


@given(st.lists(_words, max_size=8))
def test_any_command_is_a_job_or_a_job_file_error(words: list[str]) -> None:
    try:
        made = job_from_command(words)
    except JobFileError as error:
        made = None
        problems = error.problems
    assert made or problems
