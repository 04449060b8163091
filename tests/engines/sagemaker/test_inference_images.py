"""Images that serve a model on SageMaker, by what its code imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.engines.sagemaker.inference_images import serving_image
from windlass.errors import UsageError


def chosen(folder: Path, code: str | None, *, region: str = "us-east-1", gpus: int = 0, image: str = "") -> str:
    (folder / "code").mkdir(exist_ok=True)
    if code is not None:
        (folder / "code" / "inference.py").write_text(code)
    return serving_image(image, folder, region, gpus, is_in_vpc=False)


@pytest.mark.parametrize(
    ("code", "region", "gpus", "expected"),
    [
        ("import torch", "us-east-1", 0, "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-inference:2.6.0-cpu-"),
        (
            "from torch import nn",
            "eu-west-1",
            1,
            "763104351884.dkr.ecr.eu-west-1.amazonaws.com/pytorch-inference:2.6.0-gpu-",
        ),
        ("import joblib, torch", "us-east-1", 0, "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-inference:"),
        ("import joblib", "us-west-2", 0, "246618743249.dkr.ecr.us-west-2.amazonaws.com/sagemaker-scikit-learn:1.2-1"),
        (
            "from sklearn import svm",
            "us-east-1",
            0,
            "683313688378.dkr.ecr.us-east-1.amazonaws.com/sagemaker-scikit-learn",
        ),
    ],
)
def test_default_image_is_that_of_the_framework(
    tmp_path: Path, code: str, region: str, gpus: int, expected: str
) -> None:
    assert chosen(tmp_path, code, region=region, gpus=gpus).startswith(expected)


@pytest.mark.parametrize(
    ("code", "region", "message"),
    [
        ("import torch", "cn-north-1", "imports torch"),
        ("import torch", "ap-east-1", "imports torch"),
        ("import joblib", "me-south-1", "imports joblib"),
        ("import jax", "us-east-1", "imports no known framework"),
        (None, "us-east-1", "it has no code/inference.py"),
        ("import torch as", "us-east-1", "is not valid Python"),
    ],
)
def test_image_must_be_named_where_none_is_known(tmp_path: Path, code: str | None, region: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        chosen(tmp_path, code, region=region)


def test_image_of_aws_needs_the_file_that_it_runs(tmp_path: Path) -> None:
    image = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-inference:2.6.0-cpu-py312-ubuntu22.04-sagemaker"
    with pytest.raises(UsageError, match="the model has no such file"):
        chosen(tmp_path, None, image=image)
    assert chosen(tmp_path, "import torch", image=image) == image


@pytest.mark.parametrize(
    "name", ["pytorch-training:2.10", "tensorflow-training-neuronx:2", "pytorch-training@sha256:0a"]
)
def test_images_for_training_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="training image, and has no program `serve`"):
        chosen(tmp_path, "import torch", image=f"763104351884.dkr.ecr.us-east-1.amazonaws.com/{name}")


def test_own_image_needs_no_file_of_aws(tmp_path: Path) -> None:
    image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/digits:1"
    assert chosen(tmp_path, None, image=image) == image
