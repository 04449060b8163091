"""Serves a state dict: weights as safetensors or from torch.save, and a function that creates the module for them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from windlass.serving.formats import RequestError
from windlass.serving.predictor import ModelError, Predictor, import_file, require_trust
from windlass.serving.settings import Model

DEFAULT_FUNCTION = "model.py:model"
STATE_KEYS = ("model", "state_dict", "model_state_dict")
"""Keys under which training scripts save a state dict together with other state."""
PREFIXES = ("module.", "_orig_mod.")
"""Prefixes of parameters that DistributedDataParallel and torch.compile add."""


def load(path: Path, folder: Path, model: Model) -> Predictor:
    """Loads the weights into the module that the model function creates. Raises ModelError."""
    weights = _read(path, model)
    module = weights if isinstance(weights, torch.nn.Module) else _make(folder, model)
    if module is not weights:
        try:
            module.load_state_dict(state_of(weights))
        except (RuntimeError, TypeError) as error:
            raise ModelError(f"{path} does not fit the module: {error}") from error
    return StateDict(module)


def _read(path: Path, model: Model) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=not model.allow_pickle)
    except pickle.UnpicklingError:
        require_trust(path, model)
        raise


def _make(folder: Path, model: Model) -> Any:
    """Calls the model function, which is `--function FILE:NAME` or `model` in `model.py`, and returns the module. The
    file is looked up in the model's folder, in its subfolder `code`, and in the working folder.
    """
    file, _, name = (model.function or DEFAULT_FUNCTION).rpartition(":")
    for candidate in (folder / file, folder / "code" / file, Path(file).absolute()):
        if candidate.is_file():
            function = getattr(import_file(candidate), name, None)
            if function is None:
                raise ModelError(f"{candidate} has no function {name}")
            return function()
    raise ModelError(f"a state dict needs a function that makes its module: {file or name} is missing (--function)")


def state_of(weights: Any) -> dict[str, Any]:
    """Returns the state dict in a saved object, without the prefixes of DDP and torch.compile. Raises ModelError."""
    for key in STATE_KEYS:
        if isinstance(weights, Mapping) and isinstance(weights.get(key), Mapping):
            weights = weights[key]
    if not isinstance(weights, Mapping):
        raise ModelError(f"the file has a {type(weights).__name__}, not a state dict")
    state = {str(name): value for name, value in weights.items()}
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


class StateDict(Predictor):
    """A torch module. It is called with one tensor for an array or a list, or with keyword arguments for a dict."""

    def __init__(self, module: Any) -> None:
        super().__init__(self._predict, self._predict_batch)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._module = module.to(self._device).eval()

    @torch.inference_mode()
    def _predict(self, value: Any) -> Any:
        if isinstance(value, dict):
            return self._module(**{name: self._tensor(one) for name, one in value.items()})
        return self._module(self._tensor(value))

    @torch.inference_mode()
    def _predict_batch(self, values: list[Any]) -> list[Any]:
        """Joins the inputs along their first dimension, and splits the output."""
        tensors = [self._tensor(value) for value in values]
        return list(torch.split(self._module(torch.cat(tensors)), [len(one) for one in tensors]))

    def _tensor(self, value: Any) -> Any:
        """Returns a tensor on the model's device: arrays keep their type, numbers of JSON and CSV become float32.
        Raises RequestError.
        """
        if isinstance(value, bytes):
            raise RequestError(415, "images need a predict.py that decodes them")
        try:
            found = torch.from_numpy(value) if hasattr(value, "dtype") else torch.tensor(value, dtype=torch.float32)
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise RequestError(400, f"the input is not an array of numbers: {error}") from error
        return found.to(self._device)
