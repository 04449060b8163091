from __future__ import annotations

import os
from pathlib import Path

import pytest

from windlass.actions.jobs import read_job
from windlass.errors import JobFileError, UsageError
from windlass.runs.context import Context

SLURM = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:a100:4 --time=02:00:00\nmodule load cuda\n"
GUIDE = "; the guide Coming from Slurm names the fields for #SBATCH"


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(
        {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "WINDLASS_HOME": str(tmp_path / "home")}, tmp_path
    )


@pytest.mark.parametrize(
    ("name", "text", "message", "hint"),
    [
        ("ptj.yaml", "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\n", "is a manifest of Kubernetes, PyTorchJob,",
         "windlass import ptj.yaml"),
        ("pod.json", '{"apiVersion": "v1", "kind": "Pod"}', "is a manifest of Kubernetes,", "windlass import pod.json"),
        ("sky.yaml", "num_nodes: 2\nenvs: {LR: 1}\nrun: python train.py\n", "is a task of SkyPilot,",
         "windlass import --sky sky.yaml"),
        ("sky.yaml", "resources: {accelerators: A100:8}\nworkdir: .\nrun: python train.py\n", "is a task of SkyPilot,",
         "windlass import --sky sky.yaml"),
        ("app.yaml", "name: a\nroles: []\n", "is an AppDef of TorchX,", "windlass import --torchx app.yaml"),
        ("my job.sbatch", f"{SLURM}srun -N 2 torchrun \\\n --nnodes 2 train.py --lr 1\n", "is a batch script of Slurm,",
         f"windlass run -- torchrun --nnodes 2 train.py --lr 1{GUIDE}"),
        ("x.sh", f"{SLURM}srun torchrun --nnodes $SLURM_NNODES --nproc_per_node=8 train.py -e 3 --out $OUT\n",
         "is a batch script of Slurm,", f"windlass run --nodes 2 --procs-per-node 8 train.py -- -e 3 --out …{GUIDE}"),
        ("x.slurm", f"{SLURM}srun python -u train.py\n", "is a batch script of Slurm,",
         f"windlass run --nodes 2 --procs-per-node 4 train.py{GUIDE}"),
        ("x.slurm", f"{SLURM}./solve\n", "is a batch script of Slurm,", f"windlass run SCRIPT{GUIDE}"),
        ("eval.sh", "#!/bin/sh\n# python old.py\necho 'x\n", "is a shell script,", "windlass run -- bash eval.sh"),
        ("eval.sh", "python eval.py --x 1\n", "is a shell script,",
         "windlass run -- bash eval.sh; what it starts, with a log for each rank: windlass run eval.py -- --x 1"),
        ("a.toml", "a = 1\n", "is neither a job file nor a script",
         "a job file ends in .yaml, a script in .py; another program: windlass run -- PROGRAM …"),
    ],
)  # fmt: skip
def test_file_of_another_tool_is_refused_with_the_right_command(
    context: Context, name: str, text: str, message: str, hint: str
) -> None:
    (context.cwd / name).write_text(text)
    with pytest.raises(UsageError) as raised:
        read_job(name, (), {}, context)
    assert raised.value.message.startswith(f"{name} {message}")
    assert raised.value.hint == hint


def test_job_file_with_one_wrong_field_keeps_its_problems(context: Context) -> None:
    (context.cwd / "job.yaml").write_text("name: a\nrun: train.py\nnum_nodes: 2\n")
    with pytest.raises(JobFileError) as raised:
        read_job("job.yaml", (), {}, context)
    assert [problem.hint for problem in raised.value.problems] == [
        "did you mean nodes?",
        "windlass import --sky job.yaml",
    ]


def test_shell_script_with_a_shebang_is_a_program(context: Context) -> None:
    (context.cwd / "eval.sh").write_text("#!/bin/sh\necho\n")
    (context.cwd / "eval.sh").chmod(0o755)
    assert read_job("eval.sh", (), {}, context).job.script_kind == "program"
