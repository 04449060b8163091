from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.errors import JobFileError
from windlass.spec.commandline import Caller, job_from_command, job_from_script, read_command
from windlass.spec.job import Job

LOCAL_RANK = "'--local_rank=$WINDLASS_LOCAL_RANK'"


def job(**fields: Any) -> Job:
    return Job(**{"name": "train", "run": "train.py", **fields})


def ranks(**fields: Any) -> Job:
    """Returns a job of torchrun, which sets distributed variables even for a single rank."""
    return job(launcher="torchrun", **fields)


@pytest.mark.parametrize(
    ("line", "same_as"),
    [
        ("torchrun train.py", ranks()),
        (
            "torchrun --nproc-per-node 2 --nnodes 2 train.py --epochs 5",
            ranks(run="train.py --epochs 5", nodes=2, procs_per_node=2),
        ),
        ("torchrun --nproc_per_node=2 --nnodes=1:4 train.py", ranks(nodes={"min": 1, "max": 4}, procs_per_node=2)),
        ("torchrun --standalone --nproc-per-node gpu train.py", ranks(procs_per_node="auto")),
        ("torchrun --standalone --nnodes=1 --nproc_per_node=auto train.py", ranks(procs_per_node="auto")),
        ("torchrun --max-restarts 3 --shutdown-timeout 60 train.py", ranks(restarts=3, grace=60)),
        (
            "torchrun --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --master-port 29501 train.py",
            ranks(nodes=2, local={"port": 29501}),
        ),
        (
            "torchrun --rdzv-backend c10d --rdzv_endpoint=h:29400 --rdzv-id 7 --rdzv-conf a=9 --nnodes 2 train.py",
            ranks(nodes=2),
        ),
        ("torchrun -m train --nnodes 7", ranks(run="-m train --nnodes 7")),
        ("torchrun --module pkg.sub.train", ranks(name="sub", run="-m pkg.sub.train")),
        ("torchrun --no-python ./train -x", ranks(run="./train -x")),
        ("torchrun -- train.py", ranks()),
        ("/opt/env/bin/torchrun train.py", ranks(python="/opt/env/bin/python3")),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py", ranks(procs_per_node=2)),
        (".venv/bin/python -m torch.distributed.run train.py", ranks(python=".venv/bin/python")),
        ("python3 -m torch.distributed.launch --use_env --nproc_per_node=2 train.py", ranks(procs_per_node=2)),
        (
            "python -m torch.distributed.launch --nproc_per_node 2 train.py --lr 1",
            ranks(run="train.py '--local-rank=$WINDLASS_LOCAL_RANK' --lr 1", procs_per_node=2),
        ),
        ("torchrun --tee 3 --log-dir logs -r3 --local-ranks-filter 0 --role trainer train.py", ranks()),
        ("torchrun --rdzv-backend etcd --rdzv-endpoint h:1 --local-addr h --monitor-interval 1 train.py", ranks()),
        ("env A=1 B=x=y torchrun --nproc-per-node 2 train.py", ranks(procs_per_node=2, env={"A": "1", "B": "x=y"})),
        ("A=1 B=x=y torchrun --nproc-per-node 2 train.py", ranks(procs_per_node=2, env={"A": "1", "B": "x=y"})),
        ("env A=1 python -u train.py", job(env={"A": "1", "PYTHONUNBUFFERED": "1"})),
        (
            "deepspeed train.py --deepspeed ds.json",
            ranks(run=f"train.py {LOCAL_RANK} --deepspeed ds.json", procs_per_node="auto"),
        ),
        (
            "deepspeed --num_gpus=2 --master_port 29501 --no_local_rank train.py",
            ranks(procs_per_node=2, local={"port": 29501}),
        ),
        (
            "deepspeed --num_gpus 2 --num_nodes 1 --module train -x",
            ranks(run=f"-m train {LOCAL_RANK} -x", procs_per_node=2),
        ),
        ("deepspeed --num_gpus 2 --no_python ./train -x", ranks(run=f"./train {LOCAL_RANK} -x", procs_per_node=2)),
        (
            "fabric run --accelerator=cpu --devices 2 --strategy ddp --precision bf16-mixed train.py",
            ranks(
                procs_per_node=2,
                env={
                    "LT_CLI_USED": "1",
                    "LT_ACCELERATOR": "cpu",
                    "LT_STRATEGY": "ddp",
                    "LT_PRECISION": "bf16-mixed",
                    "LT_DEVICES": "2",
                    "LT_NUM_NODES": "1",
                },
            ),
        ),
        (
            "fabric run --devices 0,1 --num-nodes 2 train.py",
            ranks(nodes=2, procs_per_node=2, env={"LT_CLI_USED": "1", "LT_DEVICES": "0,1", "LT_NUM_NODES": "2"}),
        ),
        ("python train.py --lr 1e-3", job(run="train.py --lr 1e-3")),
        ("python3.12 train.py", job(python="python3.12")),
        ("python -u -O train.py", job(env={"PYTHONUNBUFFERED": "1", "PYTHONOPTIMIZE": "1"})),
        ("python -m train -x", job(run="-m train -x")),
        ("./train.py -x", job(run="./train.py -x")),
        ("mpirun -np 4 python train.py -x", job(run="train.py -x", launcher="mpi", procs_per_node=4)),
        (
            "mpirun -n 2 --mca plm_rsh_args -v --mca orte_tmpdir_base /t python train.py",
            job(
                run="train.py",
                launcher="mpi",
                procs_per_node=2,
                env={
                    "OMPI_MCA_plm_rsh_args": "-v",
                    "PRTE_MCA_plm_ssh_args": "-v",
                    "OMPI_MCA_orte_tmpdir_base": "/t",
                    "PRTE_MCA_prte_tmpdir_base": "/t",
                },
            ),
        ),
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
        ("accelerate launch train.py", job(procs_per_node="auto")),
        (
            "accelerate launch --cpu --num_processes 2 --num_cpu_threads_per_process=1 train.py",
            job(procs_per_node=2, env={"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}),
        ),
        (
            "accelerate launch --num_processes 2 --use_deepspeed --zero_stage 2 --gradient_accumulation_steps=4 a.py",
            job(
                name="a",
                run="a.py",
                procs_per_node=2,
                env={
                    "ACCELERATE_USE_DEEPSPEED": "true",
                    "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2",
                    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
                },
            ),
        ),
    ],
)
def test_a_launcher_line_becomes_a_job(line: str, same_as: Job) -> None:
    assert job_from_command(shlex.split(line)) == same_as


@pytest.mark.parametrize(
    "line",
    [
        "bash -c 'python train.py'",
        "./prog x",
        "python -X dev train.py",
        "python -c 'print(1)'",
        "env -i ./prog",
        "uv run --with torch train.py",
        "uv run torchrun train.py",
        "srun -n 2 python train.py",
    ],
)
def test_other_command_lines_become_commands_word_by_word(line: str) -> None:
    made = job_from_command(shlex.split(line))
    assert (made.command, made.run, made.launcher) == (tuple(shlex.split(line)), None, "plain")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("torchrun --numa-binding x --foo 1.py train.py", ["--numa-binding: is not supported", "--foo"]),
        (
            "torchrun --foo 3 --bar --run-path train.py",
            ["--foo: is not an option of torchrun", "--bar: is not an option", "--run-path: is not supported"],
        ),
        ("deepspeed --num_nodes 2 --hostfile h train.py", ["windlass run --nodes 2 -- deepspeed", "--hostfile"]),
        ("deepspeed --include localhost:0,1 train.py", ["--include: is not supported (write --num_gpus"]),
        ("fabric run --strategy dp train.py", ["--strategy: is dp"]),
        ("torchrun --nproc-per-nod 2", ["is not an option of torchrun (did you mean --nproc-per-node?)"]),
        ("torchrun", ["no script is named (give for example: torchrun train.py)"]),
        ("torchrun --nnodes", ["--nnodes: takes 1 value", "no script"]),
        ("torchrun --nnodes 0 train.py", ["--nnodes: expected a whole number from 1, found '0'"]),
        ("torchrun --nnodes 4:1 train.py", ["nodes.max: is below min"]),
        ("torchrun --nproc-per-node cpu train.py", ["write the number of ranks"]),
        ("torchrun --standalone --nnodes 2 train.py", ["--standalone: means one node"]),
        ("torchrun train", ["'train' is not the name of a Python script (let its name end in .py, or add --no-python"]),
        ("torchrun --no-python train.py", ["--no-python: starts train.py without Python"]),
        ("torchrun --master-port 70000 train.py", ["local.port: must be at most 65535"]),
        (
            "mpirun -H a:2,b:2 --hostfile h -bind-to none -map-by slot -x PATH python train.py",
            ["-H: ", "--hostfile: ", "-bind-to: ", "-map-by: ", "-x PATH: has no value", "-np: is missing"],
        ),
        ("mpirun -np 2 a : -np 2 b", [":: starts several programs"]),
        ("mpirun -np 2", ["no program is named"]),
        ("mpirun -np 2 -x HF_TOKEN=hunter2hunter2 python train.py", ["env.HF_TOKEN: looks like a secret"]),
        ("horovodrun -np 2 --gloo python train.py", ["--gloo: is not supported"]),
        ("accelerate launch --use_megatron_lm --num_processes 2 a.py", ["--use_megatron_lm: is not supported"]),
        ("accelerate launch --config_file c --num_processes 3 --num_machines 2 a.py", ["--config_file", "not divide"]),
        ("", ["the command is empty"]),
    ],
)
def test_options_that_a_job_cannot_express_are_refused_by_name(line: str, says: list[str]) -> None:
    with pytest.raises(JobFileError) as caught:
        job_from_command(shlex.split(line))
    said = [str(problem) for problem in caught.value.problems]
    assert len(said) == len(says)
    assert all(words in text for words, text in zip(says, said, strict=True)), said
    assert all("hunter2" not in text for text in said)


def test_mpirun_x_reads_the_value_from_the_given_environment() -> None:
    made = job_from_command(shlex.split("mpirun -np 2 -x LEVEL python train.py"), environ={"LEVEL": "3"})
    assert made.env == {"LEVEL": "3"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("torchrun --nproc-per-node 2 --rdzv-endpoint h:1 train.py", []),
        ("torchrun --tee 3 --log_dir=logs train.py", ["--tee is not used: the run keeps", "--log_dir is not used"]),
        ("torchrun --rdzv-backend etcd train.py", ["--rdzv-backend etcd is not used: Windlass sets up the rendezvous"]),
        ("deepspeed train.py", []),
        ("accelerate launch --gradient_accumulation_steps 2 train.py", ["--use_deepspeed only"]),
        ("./prog mine", []),
        ("env -u A torchrun train.py", ["env -u is not understood, so that the line is one command"]),
        ("uv run --with x torchrun train.py", ["uv run --with is not understood"]),
        ("conda run -n mine torchrun train.py", ["the environment of conda run is not found"]),
    ],
)
def test_dropped_and_unknown_options_are_reported(line: str, says: list[str]) -> None:
    said = [remark.message for remark in read_command(shlex.split(line)).remarks]
    assert len(said) == len(says)
    assert all(words in text for words, text in zip(says, said, strict=True)), said


@pytest.mark.parametrize(
    ("line", "job_of_it"),
    [
        ("uv run torchrun --nproc-per-node 2 train.py", ranks(procs_per_node=2, python="/uv/python")),
        ("uv run --frozen --extra gpu -- python train.py -x", job(run="train.py -x", python="/uv/python")),
        ("uv run train.py", job(python="/uv/python")),
        ("uv run -m train", job(run="-m train", python="/uv/python")),
        ("env A=1 conda run -n mine --no-capture-output python train.py", job(python="/mine/python", env={"A": "1"})),
        ("conda run --name=m mpirun -np 2 python train.py", job(launcher="mpi", procs_per_node=2, python="/m/python")),
    ],
)
def test_interpreter_of_an_environment_is_found_by_its_tool(line: str, job_of_it: Job) -> None:
    caller = Caller(find_python=lambda environment: f"/{environment.name or environment.tool[:2]}/python")
    found = read_command(shlex.split(line), caller=caller)
    assert (found.job, found.python) == (job_of_it, None)


CONFIG = """\
compute_environment: LOCAL_MACHINE
distributed_type: {kind}
mixed_precision: 'no'
num_machines: 1
num_processes: 4
main_process_port: null
use_cpu: false
{more}
"""


def of_config(kind: str, more: str = "", options: str = "") -> Job:
    text = CONFIG.format(kind=kind, more=more)
    words = ["accelerate", "launch", "--config_file", "mine.yaml", *shlex.split(options), "train.py"]
    return read_command(words, caller=Caller(read_file={"mine.yaml": text}.__getitem__)).job


def test_accelerate_file_is_read_and_options_take_precedence() -> None:
    assert of_config("MULTI_GPU") == job(procs_per_node=4, env={"ACCELERATE_MIXED_PRECISION": "no"})
    made = of_config("MULTI_CPU", options="--num_processes 2 --mixed_precision bf16")
    assert made == job(procs_per_node=2, env={"ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_USE_CPU": "true"})


def test_fsdp_settings_of_a_file_set_the_variables_of_accelerate() -> None:
    made = of_config("FSDP", "fsdp_config:\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n  fsdp_offload_params: true")
    names = {name: value for name, value in made.env.items() if name.startswith(("FSDP", "ACCELERATE_USE"))}
    assert names == {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "1",
        "FSDP_SHARDING_STRATEGY": "SHARD_GRAD_OP",
        "FSDP_RESHARD_AFTER_FORWARD": "true",
        "FSDP_OFFLOAD_PARAMS": "true",
        "FSDP_MIN_NUM_PARAMS": "100000000",
        "FSDP_FORWARD_PREFETCH": "false",
        "FSDP_USE_ORIG_PARAMS": "true",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
        "FSDP_SYNC_MODULE_STATES": "true",
        "FSDP_ACTIVATION_CHECKPOINTING": "false",
        "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": "false",
    }


def test_deepspeed_settings_of_a_file_set_the_variables_of_accelerate() -> None:
    made = of_config("DEEPSPEED", "deepspeed_config:\n  zero_stage: 3\n  zero3_init_flag: true")
    assert made.env == {
        "ACCELERATE_MIXED_PRECISION": "no",
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
        "ACCELERATE_DEEPSPEED_ZERO3_INIT": "true",
        "ACCELERATE_CONFIG_DS_FIELDS": "zero_stage,zero3_init_flag,mixed_precision",
    }


@pytest.mark.parametrize(
    ("kind", "says"), [("MEGATRON_LM", "MEGATRON_LM, not supported"), ("XLA", "XLA, not supported")]
)
def test_unsupported_accelerate_file_is_refused(kind: str, says: str) -> None:
    with pytest.raises(JobFileError, match=says):
        of_config(kind)


@pytest.mark.parametrize(
    ("written", "value"), [("num_processes", "'two'"), ("num_machines", "0"), ("num_processes", "1.5")]
)
def test_invalid_number_in_an_accelerate_file_is_refused(written: str, value: str) -> None:
    text = re.sub(rf"{written}: \d", f"{written}: {value}", CONFIG.format(kind="NO", more=""))
    line = ["accelerate", "launch", "--config_file", "mine.yaml", "train.py"]
    with pytest.raises(JobFileError, match=f"{written}: expected a whole number from 1, found {value}"):
        read_command(line, caller=Caller(read_file={"mine.yaml": text}.__getitem__))


def test_accelerate_config_defaults_are_used_and_reported() -> None:
    caller = Caller(read_file=lambda _: CONFIG.format(kind="NO", more=""), accelerate_defaults="/home/default.yaml")
    line = read_command(["accelerate", "launch", "train.py"], caller=caller)
    assert line.job.procs_per_node == 4
    assert [remark.code for remark in line.remarks] == ["accelerate-defaults"]


@pytest.mark.parametrize(
    ("line", "python"),
    [
        ("python train.py", "python"),
        ("python3 -m train", "python3"),
        ("env A=1 python train.py", "python"),
        ("mpirun -np 2 python train.py", "python"),
        ("train.py", None),
        ("torchrun train.py", "torchrun"),
        ("accelerate launch train.py", "accelerate"),
        ("/opt/bin/torchrun train.py", None),
        ("/opt/python train.py", None),
        ("python -c 1", None),
    ],
)
def test_python_without_a_folder_is_found_by_path(line: str, python: str | None) -> None:
    assert read_command(shlex.split(line)).python == python


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


def test_name_option_takes_precedence_and_is_validated() -> None:
    assert job_from_command(["python", "train.py"], name="mine").name == "mine"
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
    st.sampled_from(["env", "A=1", "uv", "conda", "run", "deepspeed", "fabric", "--cpu", "--devices", "--use_fsdp"]),
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
