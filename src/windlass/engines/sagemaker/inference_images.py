"""Container images that serve models on SageMaker: AWS's own by framework, and checks of other images. Pure."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

from windlass.code.imports import imports
from windlass.errors import UsageError

IMAGE: Final = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/(?P<name>[^:@]+)(?:[:@].+)?"
)
"""Pattern of image names in ECR."""
HANDLER: Final = "code/inference.py"
"""File with the functions that AWS's inference images call."""
PYTORCH: Final = {
    "cpu": "pytorch-inference:2.6.0-cpu-py312-ubuntu22.04-sagemaker",
    "gpu": "pytorch-inference:2.6.0-gpu-py312-cu124-ubuntu22.04-sagemaker",
}
"""AWS's newest images for PyTorch models. AWS has published patches for them until 2026-06-30."""
PYTORCH_ACCOUNT: Final = "763104351884"
OTHER_ACCOUNTS: Final = (
    "af-",
    "ap-east-",
    "ap-northeast-3",
    "ap-southeast-3",
    "cn-",
    "eu-south-",
    "il-",
    "me-",
    "us-gov-",
)
"""Prefixes of regions in which another account owns AWS's images for PyTorch."""
SKLEARN: Final = "sagemaker-scikit-learn:1.2-1-cpu-py3"
SKLEARN_ACCOUNTS: Final = {
    "ap-northeast-1": "354813040037",
    "ap-northeast-2": "366743142698",
    "ap-south-1": "720646828776",
    "ap-southeast-1": "121021644041",
    "ap-southeast-2": "783357654285",
    "ca-central-1": "341280168497",
    "eu-central-1": "492215442770",
    "eu-north-1": "662702820516",
    "eu-west-1": "141502667606",
    "eu-west-2": "764974769150",
    "eu-west-3": "659782779980",
    "sa-east-1": "737474898029",
    "us-east-1": "683313688378",
    "us-east-2": "257758044811",
    "us-west-1": "746614075791",
    "us-west-2": "246618743249",
}
"""Account that owns AWS's images for scikit-learn, by region. Source: the list in AWS's SageMaker SDK for Python."""


def serving_image(requested: str, model: Path, region: str, num_gpus: int, *, is_in_vpc: bool) -> str:
    """Returns the image that serves a model: the requested image, or AWS's image for the framework that the code
    imports.

    Raises UsageError for an image that cannot serve the model, or if no default is known.
    """
    image = requested or _default(model / HANDLER, region, num_gpus)
    found = IMAGE.fullmatch(image)
    if re.search(r"(^|/)[^/]*-training(-[^/]*)?([:@].*)?$", image):
        raise UsageError(
            f"{image} is a training image, and has no program `serve`",
            "name one for inference, such as pytorch-inference",
        )
    if found is None and not is_in_vpc:
        raise UsageError(
            f"{image} is not in ECR: SageMaker pulls it only from inside a VPC",
            "copy it into ECR, or set subnets: and security_groups: in the target",
        )
    if found is not None and found["region"] != region:
        raise UsageError(
            f"{image} is in {found['region']}, and SageMaker pulls from {region}", "name one of that region"
        )
    if found is not None and is_aws_image(image) and not (model / HANDLER).is_file():
        raise UsageError(
            f"{image} calls the functions of {HANDLER}, and the model has no such file",
            "add it, with model_fn and predict_fn; or name your own image: --image",
        )
    return image


def is_aws_image(image: str) -> bool:
    """Whether an image is one of AWS's for inference, which run `code/inference.py`."""
    found = IMAGE.fullmatch(image)
    return found is not None and (found["name"].endswith("-inference") or found["name"] == SKLEARN.partition(":")[0])


def _default(handler: Path, region: str, num_gpus: int) -> str:
    """Returns AWS's image for the framework that the code of a model imports. Raises UsageError if none is known."""
    frameworks = _imported(handler)
    if "torch" in frameworks and not region.startswith(OTHER_ACCOUNTS):
        name = PYTORCH["gpu" if num_gpus else "cpu"]
        return f"{PYTORCH_ACCOUNT}.dkr.ecr.{region}.amazonaws.com/{name}"
    if frameworks & {"sklearn", "joblib"} and "torch" not in frameworks and region in SKLEARN_ACCOUNTS:
        return f"{SKLEARN_ACCOUNTS[region]}.dkr.ecr.{region}.amazonaws.com/{SKLEARN}"
    what = (
        f"{HANDLER} imports {', '.join(sorted(frameworks))}" if frameworks else f"{HANDLER} imports no known framework"
    )
    raise UsageError(
        f"no image is known for this model in {region}: {what if handler.is_file() else f'it has no {HANDLER}'}",
        "name an image with a program `serve`: --image",
    )


def _imported(handler: Path) -> set[str]:
    """Returns the frameworks that a file imports. Raises UsageError for a file that is not Python."""
    if not handler.is_file():
        return set()
    try:
        tree = ast.parse(handler.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{handler} is not valid Python: {error}", "correct the file") from error
    return {name.partition(".")[0] for name in imports(tree)} & {"torch", "sklearn", "joblib"}
