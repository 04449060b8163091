"""Which file serves a model, how it is loaded, and how requests are answered."""

from __future__ import annotations

import json
import pickle
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.serving.server import write_model
from tests.serving.test_formats import npy, npz

from windlass.serving import models
from windlass.serving.formats import CSV, JSON, NPY, NPZ
from windlass.serving.predictor import Answer, ModelError, Predictor, Request
from windlass.serving.settings import Model, gpu_names

NETWORK = "import torch\ndef model():\n    return torch.nn.Linear(3, 2)\n"


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Files of models are imported by the same names in each test."""
    import sys

    before, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if name in ("predict", "inference", "model", "train", "helper"):
            del sys.modules[name]


def ask(model: Predictor, value: Any, accept: str = "") -> Answer:
    [answer] = model.answer([Request(JSON, accept, json.dumps(value).encode())])
    return answer


def reason(answer: Answer) -> tuple[int, str]:
    return answer.status, json.loads(answer.body)["error"]


def linear() -> tuple[torch.nn.Linear, Any]:
    """A module, and its output for the row 1, 2, 3."""
    module = torch.nn.Linear(3, 2)
    with torch.no_grad():
        return module, pytest.approx(module(torch.tensor([1.0, 2.0, 3.0])).tolist(), rel=1e-4)


# -- which file -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (["predict.py", "inference.py", "a.pt"], "predict.py"),
        (["code/predict.py", "inference.py"], "code/predict.py"),
        (["code/inference.py", "a.pt"], "code/inference.py"),
        (["a.safetensors", "notes.txt"], "a.safetensors"),
    ],
)
def test_functions_come_before_weights(tmp_path: Path, files: list[str], chosen: str) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert models.find(Model(str(tmp_path))) == (tmp_path, tmp_path / chosen)


def test_a_file_may_be_named(tmp_path: Path) -> None:
    write_model(tmp_path / "code", "", "predict.py")
    assert models.find(Model(str(tmp_path / "code" / "predict.py")))[0] == tmp_path
    assert models.find(Model(str(tmp_path), code=str(tmp_path / "code" / "predict.py")))[0] == tmp_path
    (tmp_path / "notes.txt").touch()
    (tmp_path / "empty").mkdir()
    for path, why in (("notes.txt", "neither"), ("absent", "not a file or folder"), ("empty", "no file with weights")):
        with pytest.raises(ModelError, match=why):
            models.find(Model(str(tmp_path / path)))
    for name in ("a.pt", "b.pt"):
        (tmp_path / "empty" / name).touch()
    with pytest.raises(ModelError, match=r"several files with weights \(a.pt, b.pt\)"):
        models.find(Model(str(tmp_path / "empty")))


def test_the_entry_point_of_sagemaker_may_have_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "code", "", "entry.py")
    monkeypatch.setenv("SAGEMAKER_PROGRAM", "entry.py")
    assert models.find(Model(str(tmp_path)))[1].name == "entry.py"


# -- predict.py -------------------------------------------------------------------------------------------------------


def test_a_predict_file_is_loaded_with_the_modules_beside_it(tmp_path: Path) -> None:
    write_model(tmp_path, "FACTOR = 3", "helper.py")
    code = (
        "import helper\n"
        "def load(folder):\n    global path\n    path = folder\n"
        "def predict(data):\n    return path, data * helper.FACTOR\n"
    )
    loaded = models.load(Model(str(write_model(tmp_path, code))))
    assert json.loads(ask(loaded, 2).body) == [str(tmp_path), 6]


def test_an_error_has_its_reason_and_the_trace_only_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        "class Busy(Exception):\n    status_code = 429\n"
        "def predict(data):\n"
        "    raise {'value': ValueError, 'busy': Busy}.get(data, RuntimeError)('no\\nsuch ' + data)\n"
    )
    loaded = models.load(Model(str(write_model(tmp_path, code))))
    assert reason(ask(loaded, "value")) == (400, "ValueError: no such value")
    assert reason(ask(loaded, "else")) == (500, "RuntimeError: no such else")
    assert reason(ask(loaded, "busy")) == (429, "Busy: no such busy")
    assert "Traceback" in capsys.readouterr().err


def test_results_that_json_lacks_are_errors_of_the_model(tmp_path: Path) -> None:
    loaded = models.load(Model(str(write_model(tmp_path, "def predict(data):\n    return float(data)\n"))))
    status, why = reason(ask(loaded, "nan"))
    assert status == 500
    assert why.startswith("the result cannot be written as application/json")
    assert ask(loaded, "nan", CSV) == Answer(200, CSV, b"nan\n")


def test_a_status_of_another_type_is_sent_as_a_number(tmp_path: Path) -> None:
    code = """
        import http
        class Refused(Exception): pass
        def predict(kind):
            error = Refused()
            error.status_code = {"enum": http.HTTPStatus.CONFLICT, "float": 409.0, "text": "409"}[kind]
            raise error
    """
    model = models.load(Model(str(write_model(tmp_path, textwrap.dedent(code)))))
    found = model.answer([Request(JSON, "", json.dumps(kind).encode()) for kind in ("enum", "float", "text")])
    assert [(type(one.status), one.status) for one in found] == [(int, 409), (int, 409), (int, 500)]


def test_bytes_are_sent_as_they_are(tmp_path: Path) -> None:
    loaded = models.load(Model(str(write_model(tmp_path, "def predict(data):\n    return bytes(data)\n"))))
    assert ask(loaded, [1, 2]) == Answer(200, "application/octet-stream", b"\1\2")


def test_a_file_without_functions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no function predict\(data\)"):
        models.load(Model(str(write_model(tmp_path, "x = 1"))))


# -- batches ----------------------------------------------------------------------------------------------------------


def batch(loaded: Predictor, *values: Any) -> list[Any]:
    answers = loaded.answer([Request(JSON, "", json.dumps(value).encode()) for value in values])
    return [json.loads(one.body) if one.status == 200 else one.status for one in answers]


def test_a_batch_is_one_call_and_a_bad_input_fails_alone(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[list[Any]] = []

    def predict_batch(values: list[Any]) -> list[Any]:
        calls.append(values)
        return [10 / value for value in values]

    loaded = Predictor(None, predict_batch)
    assert batch(loaded, 1, 2, 5) == [10, 5, 2]
    assert calls == [[1, 2, 5]]
    assert batch(loaded, 1, 0, 5) == [10, 500, 2]
    assert calls[1:] == [[1, 0, 5], [1], [0], [5]]
    bad = loaded.answer([Request(JSON, "", b"{"), Request(JSON, "", b"1"), Request("text/xml", "", b"")])
    assert [one.status for one in bad] == [400, 200, 415]


def test_a_batch_with_too_few_results_is_repeated_one_by_one() -> None:
    loaded = Predictor(None, lambda values: values[:1])
    assert batch(loaded, 1, 2) == [1, 2]


def test_batches_need_a_function_for_them(tmp_path: Path) -> None:
    model = Model(str(write_model(tmp_path, "def predict(data):\n    return data\n")), is_batched=True)
    with pytest.raises(ModelError, match="predict_batch"):
        models.load(model)


# -- weights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["safetensors", "state_dict", "ddp", "checkpoint"])
def test_a_state_dict_is_loaded_into_the_module_of_the_function(tmp_path: Path, form: str) -> None:
    module, expected = linear()
    state = module.state_dict()
    write_model(tmp_path, NETWORK, "model.py")
    if form == "safetensors":
        save_file(state, tmp_path / "model.safetensors")
    elif form == "ddp":
        torch.save({f"module.{name}": value for name, value in state.items()}, tmp_path / "model.pt")
    else:
        torch.save({"epoch": 3, "state_dict": state} if form == "checkpoint" else state, tmp_path / "model.pt")
    loaded = models.load(Model(str(tmp_path), is_batched=True))
    assert json.loads(ask(loaded, [[1, 2, 3]]).body) == [expected]
    assert batch(loaded, [[1, 2, 3]], [[1, 2, 3], [0, 0, 0]])[0] == [expected]
    rows = np.array([[1, 2, 3]], dtype="float32")
    [of_array, of_csv, of_dict] = loaded.answer(
        [
            Request(NPY, NPY, npy(rows)),
            Request(CSV, "", b"1,2,3"),
            Request(NPZ, "", npz(input=npy(rows))),
        ]
    )
    assert of_array.content_type == NPY
    assert json.loads(of_csv.body) == json.loads(of_dict.body) == [expected]


def test_inputs_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    torch.save(linear()[0].state_dict(), write_model(tmp_path, NETWORK, "model.py") / "model.pt")
    loaded = models.load(Model(str(tmp_path)))
    for value in ("text", [[1], [1, 2]], [None]):
        assert ask(loaded, value).status == 400
    assert loaded.answer([Request("image/png", "", b"x")])[0].status == 415
    assert reason(ask(loaded, [[1, 2]]))[0] == 500


def test_the_function_of_a_training_script_makes_the_module(tmp_path: Path) -> None:
    torch.save(linear()[0].state_dict(), tmp_path / "model.pt")
    script = write_model(tmp_path / "src", NETWORK.replace("model()", "make()"), "train.py") / "train.py"
    assert ask(models.load(Model(str(tmp_path), function=f"{script}:make")), [1, 2, 3]).status == 200
    with pytest.raises(ModelError, match="no function other"):
        models.load(Model(str(tmp_path), function=f"{script}:other"))
    with pytest.raises(ModelError, match=r"model.py is missing"):
        models.load(Model(str(tmp_path)))


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(4, 4).state_dict(), write_model(tmp_path, NETWORK, "model.py") / "model.pt")
    with pytest.raises(ModelError, match="does not fit"):
        models.load(Model(str(tmp_path)))
    torch.save([1, 2], tmp_path / "model.pt")
    with pytest.raises(ModelError, match="a list, not a state dict"):
        models.load(Model(str(tmp_path)))


class Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("the pickle ran code",)


@pytest.mark.parametrize("name", ["model.pt", "model.pkl", "model.joblib"])
def test_pickles_are_refused_unread(tmp_path: Path, name: str) -> None:
    write_model(tmp_path, NETWORK, "model.py")
    if name == "model.pt":
        torch.save(Payload(), tmp_path / name)
    else:
        (tmp_path / name).write_bytes(pickle.dumps(Payload()))
    with pytest.raises(ModelError, match="pass --allow-pickle"):
        models.load(Model(str(tmp_path)))


def test_pickled_models_are_served_when_they_are_allowed(tmp_path: Path) -> None:
    from sklearn.linear_model import LogisticRegression  # here: it costs a second, which each collection would pay

    classifier = LogisticRegression().fit([[0.0], [1.0]], [0, 1])
    joblib.dump(classifier, tmp_path / "model.joblib")
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(classifier))
    (tmp_path / "number.pkl").write_bytes(pickle.dumps(7))
    module, expected = linear()
    torch.save(module, tmp_path / "model.pt")
    for name in ("model.joblib", "model.pkl"):
        loaded = models.load(Model(str(tmp_path / name), allow_pickle=True))
        assert json.loads(ask(loaded, [[0.1], [3]]).body) == [0, 1]
        assert ask(loaded, [[0.1, 3]]).status == 400
    loaded = models.load(Model(str(tmp_path / "model.pt"), allow_pickle=True))
    assert json.loads(ask(loaded, [[1, 2, 3]]).body) == [expected]
    with pytest.raises(ModelError, match="no method predict"):
        models.load(Model(str(tmp_path / "number.pkl"), allow_pickle=True))


@pytest.mark.parametrize(
    ("listed", "names"),
    [("0,2", ["0", "2"]), ("", []), ("-1", []), ("1,-1,2", ["1"]), ("MIG-a, GPU-b", ["MIG-a", "GPU-b"])],
)
def test_visible_gpus_are_those_of_the_variable(monkeypatch: pytest.MonkeyPatch, listed: str, names: list[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert gpu_names() == names
