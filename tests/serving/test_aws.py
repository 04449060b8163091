"""An `inference.py` written for AWS's containers gives the same answers here as there."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from tests.serving.server import write_model
from tests.serving.test_formats import npy

from windlass.serving import models
from windlass.serving.formats import CSV, IMAGE, JSON, NPY, NPZ
from windlass.serving.predictor import Answer, ModelError, Request
from windlass.serving.settings import Model

ROOT = Path(__file__).parents[2]

# As in amazon-sagemaker-examples, frameworks/pytorch: a training script with model_fn, and defaults for the rest.
MNIST = """
import os
import torch
import torch.nn as nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return torch.log_softmax(self.layer(x), dim=1)

def model_fn(model_dir):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = torch.nn.DataParallel(Net())
    with open(os.path.join(model_dir, "model.pth"), "rb") as f:
        model.load_state_dict(torch.load(f))
    return model.to(device)
"""

# The shape of the CIFAR-10 example of the reference systems: transform_fn that answers {"score": ...} to an image.
CIFAR = """
import json
import torch

def model_fn(model_dir):
    return torch.nn.Flatten()

def transform_fn(model, data, content_type, accept):
    if content_type != "application/x-image":
        raise ValueError("send an image")
    pixels = torch.tensor(list(data), dtype=torch.float32).reshape(1, 2, -1)
    return json.dumps({"score": model(pixels).tolist()}), "application/json"
"""

# As in amazon-sagemaker-examples, sklearn_iris.
IRIS = """
import os
import joblib

def model_fn(model_dir):
    return joblib.load(os.path.join(model_dir, "model.joblib"))
"""

# Each function replaced; the context is a last argument that a function may take.
OWN = """
import json

def model_fn(model_dir, context):
    return context.system_properties["model_dir"] == model_dir

def input_fn(request_body, request_content_type):
    if request_content_type == "application/json":
        return json.loads(request_body)["instances"]
    raise KeyError(request_content_type)

def predict_fn(data, model, context):
    if not data:
        raise RuntimeError("nothing to do")
    return {"predictions": [model, *data]}

def output_fn(prediction, accept):
    return json.dumps({**prediction, "accept": accept})
"""


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    path = list(sys.path)
    yield
    sys.path[:] = path
    sys.modules.pop("inference", None)


def make(folder: Path, name: str) -> tuple[Path, str]:
    """The folder of an example's model, and whose defaults its container has."""
    code, kind = {
        "mnist": (MNIST, "torch"),
        "cifar": (CIFAR, "torch"),
        "iris": (IRIS, "sklearn"),
        "own": (OWN, "plain"),
    }[name]
    write_model(folder / "code", code, "inference.py")
    if name == "mnist":
        torch.manual_seed(0)
        torch.save(
            {f"module.layer.{k}": v for k, v in torch.nn.Linear(4, 3).state_dict().items()}, folder / "model.pth"
        )
    if name == "iris":
        from sklearn.datasets import load_iris  # here: it costs a second, which each collection would pay
        from sklearn.tree import DecisionTreeClassifier

        features, classes = load_iris(return_X_y=True)
        joblib.dump(DecisionTreeClassifier(random_state=0).fit(features, classes), folder / "model.joblib")
    return folder, kind


ROWS = [[5.1, 3.5, 1.4, 0.2], [6.7, 3.0, 5.2, 2.3]]
TABLE = [
    *((json.dumps(ROWS).encode(), JSON, accept) for accept in ("", "*/*", JSON, CSV, NPY, f"text/html, {CSV}")),
    (b"5.1,3.5,1.4,0.2\n6.7,3,5.2,2.3", CSV, ""),
    (b"5,3,1,0\n6,3,5,2", CSV, NPY),
    (npy(np.array(ROWS, dtype="float32")), NPY, JSON),
    (json.dumps(ROWS).encode(), JSON, "text/html"),
    (b"{", JSON, ""),
    (b"x", "text/xml", ""),
]
REQUESTS = {
    "mnist": TABLE,
    "iris": TABLE,
    "cifar": [(b"abcd", IMAGE, ""), (b"abcd", JSON, ""), (b"abc", IMAGE, JSON)],
    "own": [
        (b'{"instances": [1, "\xc3\xa4"]}', JSON, ""),
        (b'{"instances": [1]}', JSON, "application/x-own"),
        (b'{"instances": []}', JSON, ""),
        (b"1", CSV, ""),
    ],
}


def ours(model: Path, requests: list[tuple[bytes, str, str]]) -> list[Answer]:
    loaded = models.load(Model(str(model)))
    return [loaded.answer([Request(kind, accept, body)])[0] for body, kind, accept in requests]


def theirs(model: Path, kind: str, requests: list[tuple[bytes, str, str]]) -> list[tuple[bytes | None, str | None]]:
    done = subprocess.run(["bash", "tools/inference-env.sh"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    folders = [
        next((ROOT / ".cache" / name / "lib").glob("python3*/site-packages"))
        for name in ("inference-env", "inference-torch-env")
    ]
    given = {"model": str(model), "requests": [(base64.b64encode(body).decode(), *more) for body, *more in requests]}
    asked = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "serving" / "aws_handlers.py"), kind],
        input=json.dumps(given),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr
    answers: list[tuple[str | None, str | None]] = json.loads(asked.stdout)
    return [(None if body is None else base64.b64decode(body), kind) for body, kind in answers]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "cifar", "iris", "own"])
def test_answers_are_those_of_sagemaker_inference(tmp_path: Path, name: str) -> None:
    model, kind = make(tmp_path, name)
    expected = theirs(model, kind, REQUESTS[name])
    found = ours(model, REQUESTS[name])
    assert [one.body if one.status == 200 else None for one in found] == [body for body, _ in expected]
    # AWS's server names the whole Accept header as the type where the container's default answers with a body alone.
    kinds = [(one.content_type, kind) for one, (body, kind) in zip(found, expected, strict=True) if body is not None]
    assert all(mine == kind or "," in str(kind) for mine, kind in kinds)
    assert any(body is None for body, _ in expected)


@pytest.mark.parametrize(
    ("name", "statuses"),
    [("mnist", [200] * 9 + [406, 400, 415]), ("iris", [200] * 9 + [406, 400, 415]), ("cifar", [200, 400, 500]),
     ("own", [200, 200, 500, 400])],
)  # fmt: skip
def test_errors_of_the_input_are_not_those_of_the_model(tmp_path: Path, name: str, statuses: list[int]) -> None:
    model, _ = make(tmp_path, name)
    assert [one.status for one in ours(model, REQUESTS[name])] == statuses


def test_sparse_arrays_are_read_and_pickles_refused(tmp_path: Path) -> None:
    import io

    import scipy.sparse

    model, _ = make(tmp_path, "iris")
    stream = io.BytesIO()
    scipy.sparse.save_npz(stream, scipy.sparse.csr_matrix(np.array(ROWS, dtype="float32")))
    pickled = npy(np.array([{"a": 1}], dtype=object), allow_pickle=True)
    found = ours(model, [(stream.getvalue(), NPZ, ""), (pickled, NPY, ""), (b"PK", NPZ, "")])
    assert found[0] == Answer(200, JSON, b"[0, 2]")
    assert [one.status for one in found] == [200, 400, 400]


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning")
def test_torchscript_is_loaded_without_a_model_fn(tmp_path: Path) -> None:
    write_model(
        tmp_path / "code",
        "def input_fn(body, content_type):\n    import torch\n    return torch.ones(1, 4)\n",
        "inference.py",
    )
    with pytest.raises(ModelError, match="no model_fn"):
        models.load(Model(str(tmp_path)))
    trace: Any = torch.jit.trace
    trace(torch.nn.Linear(4, 3), torch.ones(1, 4)).save(str(tmp_path / "any.pth"))
    [answer] = ours(tmp_path, [(b"", "text/xml", "")])
    assert np.array(json.loads(answer.body)).shape == (1, 3)


def test_transform_fn_excludes_the_functions_that_it_replaces(tmp_path: Path) -> None:
    write_model(tmp_path, CIFAR + "\ndef predict_fn(data, model): ...\n", "inference.py")
    with pytest.raises(ModelError, match="transform_fn and also"):
        models.load(Model(str(tmp_path)))


def test_an_answer_that_is_neither_text_nor_bytes_is_an_error_of_the_model(tmp_path: Path) -> None:
    code = "def model_fn(folder): ...\ndef transform_fn(model, data, content_type, accept):\n    return 7\n"
    write_model(tmp_path, code, "inference.py")
    [answer] = ours(tmp_path, [(b"1", JSON, "")])
    assert (answer.status, json.loads(answer.body)["error"]) == (500, "the answer must be text or bytes, and is a int")


def test_an_exception_may_choose_its_status_and_its_trace_is_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        "class Refused(Exception):\n    pass\n"
        "def model_fn(folder): ...\n"
        "def input_fn(body, content_type):\n"
        "    error = Refused('no')\n    error.status_code = int(body)\n    raise error\n"
    )
    write_model(tmp_path, code, "inference.py")
    assert [one.status for one in ours(tmp_path, [(b"422", JSON, ""), (b"200", JSON, "")])] == [422, 400]
    assert capsys.readouterr().err.count("Traceback") == 2


def test_the_hooks_around_model_fn_are_called(tmp_path: Path) -> None:
    code = (
        "calls = []\n"
        "def pre_model_fn(folder):\n    calls.append('pre')\n"
        "def model_fn(folder):\n    calls.append('model')\n    return calls\n"
        "def model_warmup_fn(folder, model):\n    calls.append('warmup')\n"
        "def predict_fn(data, model):\n    return model\n"
    )
    write_model(tmp_path, code, "inference.py")
    [answer] = ours(tmp_path, [(b"1", JSON, "")])
    value: Any = json.loads(answer.body)
    assert value == ["pre", "model", "warmup"]
