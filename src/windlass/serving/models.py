"""Loads a model: a user's `predict.py`, AWS's `inference.py`, or weights with a function that makes the module."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

from windlass.serving.predictor import ModelError, Predictor, import_file, require_trust
from windlass.serving.settings import Model

PICKLES = (".pkl", ".pickle", ".joblib")
WEIGHTS = (".safetensors", ".pt", ".pth", *PICKLES)
AWS_FUNCTIONS = ("model_fn", "transform_fn", "input_fn", "predict_fn", "output_fn")
"""Functions of AWS's contract; a file with one of them is not a `predict.py`."""


def load(model: Model) -> Predictor:
    """Loads the model from its folder or file. Raises ModelError, and whatever the user's functions raise."""
    folder, found = find(model)
    if found.suffix == ".py":
        loaded = _of_code(import_file(found), folder)
    elif found.suffix in PICKLES:
        loaded = _of_pickle(found, model)
    else:
        from windlass.serving import state_dict

        loaded = state_dict.load(found, folder, model)
    if model.is_batched and loaded.predict_batch is None:
        raise ModelError(f"--batch needs a function predict_batch(list), which {found.name} does not have")
    return loaded


def find(model: Model) -> tuple[Path, Path]:
    """Returns the model's folder, and the file to load: the file of `--code`, the model itself if it is a file,
    `predict.py` or `inference.py` in the folder or its subfolder `code`, or the only file with weights.

    Raises ModelError.
    """
    path = Path(model.path).absolute()
    folder = path if path.is_dir() else path.parent
    if model.code:
        return folder, Path(model.code).absolute()
    if path.is_file():
        if path.suffix not in (*WEIGHTS, ".py"):
            raise ModelError(f"{path} is neither a .py file nor a file of {', '.join(WEIGHTS)}")
        return folder.parent if path.suffix == ".py" and folder.name == "code" else folder, path
    if not path.is_dir():
        raise ModelError(f"{path} is not a file or folder")
    program = Path(os.environ.get("SAGEMAKER_PROGRAM", "inference.py")).name
    for code in (path / "predict.py", path / "code" / "predict.py", path / program, path / "code" / program):
        if code.is_file():
            return path, code
    weights = [one for one in sorted(path.iterdir()) if one.suffix in WEIGHTS]
    if len(weights) != 1:
        names = ", ".join(one.name for one in weights)
        found = f"several files with weights ({names}): name one of them" if weights else "no file with weights"
        raise ModelError(f"{path} has no predict.py or inference.py, and {found}")
    return path, weights[0]


def _of_code(module: ModuleType, folder: Path) -> Predictor:
    if any(hasattr(module, name) for name in AWS_FUNCTIONS):
        from windlass.serving.aws import Handlers

        return Handlers(module, str(folder))
    predict, predict_batch = getattr(module, "predict", None), getattr(module, "predict_batch", None)
    if predict is None and predict_batch is None:
        raise ModelError(f"{module.__file__} has no function predict(data)")
    if hasattr(module, "load"):
        module.load(str(folder))
    return Predictor(predict, predict_batch)


def _of_pickle(path: Path, model: Model) -> Predictor:
    """Loads a pickled model with a method `predict`, for example one of scikit-learn."""
    require_trust(path, model)
    if path.suffix == ".joblib":
        import joblib

        loaded = joblib.load(path)
    else:
        import pickle

        loaded = pickle.loads(path.read_bytes())
    if not hasattr(loaded, "predict"):
        raise ModelError(f"{path} has a {type(loaded).__name__}, which has no method predict")
    return Predictor(loaded.predict)
