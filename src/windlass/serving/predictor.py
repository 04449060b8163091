"""Answers requests with a loaded model. An error in one request does not affect the others."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from windlass.serving import formats
from windlass.serving.formats import RequestError
from windlass.serving.settings import Model

MAX_REASON = 500


class ModelError(Exception):
    """The model cannot be loaded, or violates its contract; the message is the reason."""


class Request(NamedTuple):
    """One request to a model."""

    content_type: str
    """Media type of the body, in lower case and without parameters; JSON if the request has none."""
    accept: str
    """Accept header; empty if the request has none."""
    body: bytes


class Answer(NamedTuple):
    """Answer of a model to one request."""

    status: int
    content_type: str
    body: bytes


class Predictor:
    """A model that is a function of one value. Answers requests in all formats of `windlass.serving.formats`."""

    def __init__(
        self, predict: Callable[[Any], Any] | None, predict_batch: Callable[[list[Any]], Sequence[Any]] | None = None
    ) -> None:
        """At least one of the functions must be given."""
        self.predict = predict
        self.predict_batch = predict_batch

    def answer(self, requests: list[Request]) -> list[Answer]:
        """Returns the answers in the order of the requests.

        If a batch fails, its requests are repeated one by one, so that only the bad input fails.
        """
        read = [answered(lambda one: (formats.negotiate(one.accept), _decoded(one)), one) for one in requests]
        inputs = [one for one in read if not isinstance(one, Answer)]
        results: list[Any] = []
        if self.predict_batch is not None and len(inputs) > 1:
            try:
                results = list(self.predict_batch([value for _, value in inputs]))
            except Exception:
                traceback.print_exc()
            else:
                if len(results) != len(inputs):
                    print(f"predict_batch returned {len(results)} results for {len(inputs)} inputs", file=sys.stderr)
        if len(results) == len(inputs):
            found = iter([answered(_encoded, result, form) for (form, _), result in zip(inputs, results, strict=True)])
        else:
            found = iter([answered(self._answer_one, form, value) for form, value in inputs])
        return [one if isinstance(one, Answer) else next(found) for one in read]

    def _answer_one(self, form: str, value: Any) -> Answer:
        if self.predict is not None:
            return _encoded(self.predict(value), form)
        assert self.predict_batch is not None
        return _encoded(self.predict_batch([value])[0], form)


def _decoded(request: Request) -> Any:
    return formats.decode(request.body, request.content_type)


def _encoded(result: Any, form: str) -> Answer:
    if isinstance(result, bytes):
        return Answer(200, formats.BYTES, result)
    try:
        return Answer(200, form, formats.encode(result, form))
    except ValueError as error:
        raise ModelError(f"the result cannot be written as {form}: {error}") from error


def answered(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the result of a function, or an error response if it raises an exception, whose traceback is printed.

    A ValueError counts as an error of the input (400), as in scikit-learn and NumPy, and other exceptions as errors of
    the model (500). An attribute `status_code` of the exception overrides the status.
    """
    try:
        return function(*arguments)
    except RequestError as error:
        return refusal(error.status, str(error))
    except Exception as error:
        traceback.print_exc()
        return refusal(status_of(error, 400 if isinstance(error, ValueError) else 500), reason_of(error))


def status_of(error: Exception, default: int) -> int:
    """Returns the HTTP status in the attribute `status_code` of an exception, or the default."""
    status = getattr(error, "status_code", default)
    return int(status) if status in range(400, 600) else default  # HTTPStatus and 404.0 are equal to an int


def refusal(status: int, reason: str) -> Answer:
    """Returns an error response with the reason."""
    return Answer(status, formats.JSON, formats.encode({"error": reason}, formats.JSON))


def reason_of(error: BaseException) -> str:
    """Returns the type and the message of an exception, shortened; the message alone for a ModelError."""
    message = " ".join(str(error).split())
    if isinstance(error, ModelError):
        return message
    return f"{type(error).__name__}: {message}"[:MAX_REASON] if message else type(error).__name__


def import_file(path: Path) -> ModuleType:
    """Imports a Python file, which can import modules in its folder. Raises ModelError."""
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ModelError(f"{path} is not a Python file")
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def require_trust(path: Path, model: Model) -> None:
    """Raises ModelError unless pickled models are allowed."""
    if not model.allow_pickle:
        raise ModelError(f"{path} is a pickle, which may run any code: pass --allow-pickle if you trust its author")
