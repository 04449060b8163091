"""`init` determines the template from a script, and writes a job file for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.actions import init
from windlass.errors import JobFileError, UsageError
from windlass.runs.context import Context
from windlass.spec.parse import parse_job

MAIN = '\nif __name__ == "__main__":\n    pass\n'


@pytest.fixture
def context(tmp_path: Path) -> Context:
    work = tmp_path / "my-work"
    work.mkdir()
    return Context({"HOME": str(tmp_path)}, work)


def write(context: Context, name: str, text: str) -> None:
    path = context.cwd / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("text", "template"),
    [
        ("import torch.distributed as dist", "torchrun"),
        ("import torch\ntorch.distributed.init_process_group()", "torchrun"),
        ("from torch import distributed", "torchrun"),
        ("from torch.nn.parallel import DistributedDataParallel", "torchrun"),
        ("import lightning as L", "torchrun"),
        ("import pytorch_lightning", "torchrun"),
        ("from transformers import Trainer", "torchrun"),
        ("from accelerate import Accelerator", "torchrun"),
        ("def f():\n    from windlass.train import report", "plain"),
        ("from windlass.train import report\nimport torch.distributed", "torchrun"),
        ("import horovod.torch as hvd", "mpi"),
        ("from mpi4py import MPI", "mpi"),
        ("import torch.distributed\nimport horovod.torch", "mpi"),
        ("import tensorflow as tf\ns = tf.distribute.MultiWorkerMirroredStrategy()", "tensorflow"),
        ("from tensorflow.distribute import MultiWorkerMirroredStrategy", "tensorflow"),
        ("import tensorflow as tf", "plain"),
        ("import keras", "plain"),
        ("import jax\njax.distributed.initialize()", "jax"),
        ("from jax.distributed import initialize", "jax"),
        ("import jax", "plain"),
        ("import xgboost as xgb", "plain"),
        ("import lightgbm", "plain"),
        ("import ray\nfrom torch.nn.parallel import DistributedDataParallel", "plain"),
        ("import torch", "plain"),
        ("import json", "plain"),
        ("from . import transformers", "plain"),
        ("import transformers_of_mine", "plain"),
    ],
)
def test_template_is_chosen_by_imports(text: str, template: str, context: Context) -> None:
    write(context, "train.py", text + MAIN)
    assert init.draft(context).template == template


@pytest.mark.parametrize("text", ["def broken(:\n", "\0", "(" * 5000, "# \xff"])
def test_unparsable_script_is_accepted(text: str, context: Context) -> None:
    (context.cwd / "train.py").write_bytes(text.encode("latin-1"))
    made = init.draft(context, script="train.py")
    assert parse_job(made.text).name == "my-work"


@pytest.mark.parametrize("template", init.TEMPLATES)
@pytest.mark.parametrize(
    "name", ["train.py", "src/deep/fine-tune.py", "my script.py", "it's.py", "naïve.py", "a#b: c.py"]
)
def test_every_template_is_a_valid_job(template: init.Template, name: str, context: Context) -> None:
    write(context, name, MAIN)
    made = init.draft(context, script=name, template=template)
    job = parse_job(made.text)
    assert name in job.script_argv
    assert job.launcher == template
    assert len([line for line in made.text.splitlines() if line.startswith("#")]) >= 5


def test_commented_lines_are_valid_too(context: Context) -> None:
    write(context, "train.py", "import torch.distributed" + MAIN)
    lines = init.draft(context).text.splitlines()
    awake = [line.removeprefix("# ") for line in lines[1:]]
    job = parse_job("\n".join(awake))
    assert (job.restarts.max, job.timeout, job.outputs.collect) == (3, 7200.0, ("out/**", "*.pt"))


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ('torch.save(model, "out/model.pt")', ("out/**",)),
        ('torch.save(model, f"model-{epoch}.pt")\nopen("log.csv", "w")', ("*.pt", "*.csv")),
        ('np.savez(os.path.join("results", name))', ("results/**",)),
        ('torch.save(model, Path("runs") / "best" / name)', ("runs/**",)),
        ('TrainingArguments(output_dir="./ckpt")', ("ckpt/**",)),
        ('parser.add_argument("--save-dir", default="out")', ("out/**",)),
        ("import lightning\nlightning.Trainer()", ("lightning_logs/**",)),
        ('open("in.csv")\ntorch.save(model, "/scratch/model.pt")\nrun(output_dir=args.out)', ()),
        ('torch.save(model, "../model.pt")\nlog.save("a message of 1.5 lines")\nds.save("s3://b/x")', ()),
        ('from windlass.train import report\ntorch.save(model, "out/model.pt")', ()),
        ('out = os.environ.get("WINDLASS_OUTPUT_DIR", "out")\ntorch.save(model, "out/model.pt")', ()),
    ],
)
def test_paths_that_a_script_saves_to_are_collected(text: str, patterns: tuple[str, ...], context: Context) -> None:
    write(context, "train.py", text + MAIN)
    assert parse_job(init.draft(context).text).outputs.collect == patterns


def test_non_python_program_is_started_unchanged(context: Context) -> None:
    write(context, "bin/solve", "")
    job = parse_job(init.draft(context, script="bin/solve").text)
    assert job.script_argv == ("./bin/solve",)
    assert job.name == "solve"


def test_script_with_a_usual_name_is_preferred(context: Context) -> None:
    for name in ("prepare.py", "train.py", "plot.py"):
        write(context, name, MAIN)
    assert init.likeliest(context.cwd).script == "train.py"


def test_script_with_training_imports_is_preferred_otherwise(context: Context) -> None:
    write(context, "prepare.py", MAIN)
    write(context, "digits.py", "import torch.distributed" + MAIN)
    assert init.likeliest(context.cwd).script == "digits.py"


def test_training_library_without_a_launcher_is_the_reason(context: Context) -> None:
    write(context, "prepare.py", MAIN)
    write(context, "boost.py", "import xgboost as xgb" + MAIN)
    made = init.draft(context)
    assert (parse_job(made.text).run, made.reason) == ("boost.py", "it imports xgboost")


def test_equally_likely_scripts_are_listed(context: Context) -> None:
    write(context, "one.py", MAIN)
    write(context, "two.py", MAIN)
    with pytest.raises(UsageError, match=r"several scripts are as likely: one\.py, two\.py"):
        init.draft(context)


def test_only_python_file_is_always_used(context: Context) -> None:
    write(context, "digits.py", "import torch.distributed\n")
    assert init.likeliest(context.cwd).script == "digits.py"


def test_modules_without_a_main_block_are_not_programs(context: Context) -> None:
    write(context, "train.py", "import torch.distributed\n")
    write(context, "model.py", "import torch\n")
    with pytest.raises(UsageError, match="no Python program"):
        init.draft(context)


@pytest.mark.parametrize("script", ["gone.py", "../outside.py", "."])
def test_missing_script_is_refused(script: str, context: Context) -> None:
    (context.cwd.parent / "outside.py").write_text("")
    with pytest.raises(UsageError):
        init.draft(context, script=script)


def test_invalid_name_is_refused_before_anything_is_written(context: Context) -> None:
    write(context, "train.py", MAIN)
    with pytest.raises(JobFileError):
        init.draft(context, name="Not Legal")
    assert [path.name for path in context.cwd.iterdir()] == ["train.py"]


def test_read_only_folder_is_a_usage_error(context: Context) -> None:
    write(context, "train.py", MAIN)
    made = init.draft(context)
    (context.cwd / "train.py").unlink()
    context.cwd.rmdir()
    with pytest.raises(UsageError, match="cannot be written"):
        init.write(made)


@pytest.mark.parametrize("template", init.TEMPLATES)
def test_job_file_fits_80_columns(template: init.Template, context: Context) -> None:
    write(context, "train.py", MAIN)
    for with_schema in (False, True):
        text = init.draft(context, template=template, with_schema=with_schema).text
        assert [line for line in text.splitlines() if len(line) > 80] == []
