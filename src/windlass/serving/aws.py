"""Serves AWS's `inference.py` with the contract of sagemaker-inference 1.10 and the defaults of its containers.

The defaults for PyTorch are those of sagemaker-pytorch-inference 2.0, the ones for scikit-learn those of
aws/sagemaker-scikit-learn-container. Two differences: pickles in npy bodies are refused, and an input that cannot be
read is answered with 400 or 415 instead of 500.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from windlass.serving import formats
from windlass.serving.formats import CSV, JSON, NPY, NPZ, UTF8_TYPES, RequestError
from windlass.serving.predictor import Answer, ModelError, Predictor, Request, answered, reason_of, status_of

ENCODED = (JSON, CSV, NPY)


class Handlers(Predictor):
    """The functions of an `inference.py`, with defaults for those that it lacks."""

    def __init__(self, module: ModuleType, folder: str) -> None:
        """Loads the model. Raises ModelError, and whatever `model_fn` raises."""
        super().__init__(None)
        functions = {name: getattr(module, f"{name}_fn", None) for name in ("transform", "input", "predict", "output")}
        if functions["transform"] and (functions["input"] or functions["predict"] or functions["output"]):
            raise ModelError("inference.py has transform_fn and also input_fn, predict_fn or output_fn")
        self.context = SimpleNamespace(system_properties={"model_dir": folder, "gpu_id": None})
        if hasattr(module, "pre_model_fn"):
            self._call(module.pre_model_fn, folder)
        self.model = self._call(getattr(module, "model_fn", _load_torchscript), folder)
        if hasattr(module, "model_warmup_fn"):
            self._call(module.model_warmup_fn, folder, self.model)
        defaults = _of_torch() if _is_torch(self.model) else _of_sklearn()
        self.transform = functions["transform"]
        self.input, self.infer, self.output = (
            functions[name] or default for name, default in zip(("input", "predict", "output"), defaults, strict=True)
        )

    def answer(self, requests: list[Request]) -> list[Answer]:
        """Returns the answers in the order of the requests."""
        return [answered(self._answer, request) for request in requests]

    def _answer(self, request: Request) -> Answer:
        accept = request.accept
        if accept in ("", "*/*"):
            accept = os.environ.get("SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT", JSON)
        content = formats.text(request.body) if request.content_type in UTF8_TYPES else request.body
        if self.transform:
            result = self._call(self.transform, self.model, content, request.content_type, accept)
        else:
            result = self._call(self.output, self._predict_content(content, request), accept)
        content_type = accept.split(",")[0].split(";")[0].strip()
        if isinstance(result, tuple):
            result, content_type = result
        if isinstance(result, str):
            result = result.encode()
        if not isinstance(result, bytes | bytearray):
            raise ModelError(f"the answer must be text or bytes, and is a {type(result).__name__}")
        return Answer(200, str(content_type), bytes(result))

    def _predict_content(self, content: Any, request: Request) -> Any:
        try:
            value = self._call(self.input, content, request.content_type)
        except RequestError:
            raise
        except Exception as error:
            traceback.print_exc()
            raise RequestError(status_of(error, 400), reason_of(error)) from error
        return self._call(self.infer, value, self.model)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function of the user. One that takes one more argument gets the context as its last argument."""
        is_given_context = len(inspect.signature(function).parameters) == len(arguments) + 1
        return function(*arguments, self.context) if is_given_context else function(*arguments)


# -- defaults ---------------------------------------------------------------------------------------------------------


def decode(content: Any, content_type: str) -> Any:
    """Returns a body as an array, or as a sparse matrix for npz. Raises RequestError."""
    import numpy

    try:
        if content_type == JSON:
            return numpy.array(json.loads(content))
        if content_type == CSV:
            return numpy.genfromtxt(io.StringIO(content), dtype=None, delimiter=",")
        if content_type == NPZ:
            import scipy.sparse

            with formats.checked_zip(content):
                return scipy.sparse.load_npz(io.BytesIO(content))
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is not {content_type}: {error}") from error
    if content_type == NPY:
        return formats.array(content)
    raise RequestError(415, f"Content-Type {content_type} is not supported without an input_fn")


def encode(prediction: Any, content_type: str) -> Any:
    """Returns a prediction as JSON (also with NaN, as AWS does), CSV or npy."""
    if content_type == JSON:
        return json.dumps(prediction, default=formats.as_list)
    return formats.as_csv(prediction) if content_type == CSV else formats.as_npy(prediction)


def _output(prediction: Any, accept: str) -> Any:
    for content_type in accept.replace(" ", "").split(","):
        if content_type in ENCODED:
            return encode(prediction, content_type), content_type
    raise RequestError(406, f"Accept {accept} is not supported; ask for one of {', '.join(ENCODED)}")


def _of_sklearn() -> tuple[Callable[..., Any], ...]:
    def input_fn(content: Any, content_type: str) -> Any:
        import numpy

        value = decode(content, content_type)
        return value.astype(numpy.float32) if content_type in UTF8_TYPES else value

    def predict_fn(value: Any, model: Any) -> Any:
        return model.predict(value)

    return input_fn, predict_fn, _output


def _is_torch(model: Any) -> bool:
    return any(base.__module__.startswith("torch.") for base in type(model).__mro__)


def _device() -> Any:
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _of_torch() -> tuple[Callable[..., Any], ...]:
    import torch

    def input_fn(content: Any, content_type: str) -> Any:
        value = decode(content, content_type)
        tensor = torch.FloatTensor(value) if content_type in UTF8_TYPES else torch.from_numpy(value)
        return tensor.to(_device())

    def predict_fn(value: Any, model: Any) -> Any:
        with torch.no_grad():
            return model.to(_device()).eval()(value.to(_device()))

    def output_fn(prediction: Any, accept: str) -> Any:
        if isinstance(prediction, torch.Tensor):
            prediction = prediction.detach().cpu().numpy().tolist()
        return _output(prediction, accept)

    return input_fn, predict_fn, output_fn


def _load_torchscript(folder: str) -> Any:
    import torch

    paths = [path for path in sorted(Path(folder).iterdir()) if path.suffix in (".pt", ".pth")]
    chosen = [path for path in paths if path.name == "model.pt"] or paths
    if len(chosen) != 1:
        raise ModelError("inference.py has no model_fn, and the folder not exactly one TorchScript file (.pt, .pth)")
    return torch.jit.load(str(chosen[0]), map_location=_device())  # type: ignore[no-untyped-call]
