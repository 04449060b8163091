"""Asks AWS's sagemaker-inference: run with its environments on PYTHONPATH.

The argument is `torch`, `sklearn` or `plain`, whose defaults are used. Standard input is JSON with the folder of the
model and requests; standard output is JSON with the answers: body, or None for an error, and media type.
"""

from __future__ import annotations

import base64
import json
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
from sagemaker_inference import content_types, decoder
from sagemaker_inference.default_inference_handler import DefaultInferenceHandler
from sagemaker_inference.transformer import Transformer


class Sklearn(DefaultInferenceHandler):  # type: ignore[misc]
    """The defaults of aws/sagemaker-scikit-learn-container, src/sagemaker_sklearn_container/serving.py."""

    def default_input_fn(self, input_data: Any, content_type: str, context: Any = None) -> Any:
        array = decoder.decode(input_data, content_type)
        return array.astype(np.float32) if content_type in content_types.UTF8_TYPES else array

    def default_predict_fn(self, data: Any, model: Any, context: Any = None) -> Any:
        return model.predict(data)


def handler(kind: str) -> Any:
    if kind == "torch":
        from sagemaker_pytorch_serving_container.default_pytorch_inference_handler import DefaultPytorchInferenceHandler

        return DefaultPytorchInferenceHandler()
    return Sklearn() if kind == "sklearn" else None


def main() -> None:
    given = json.load(sys.stdin)
    sys.path.insert(0, f"{given['model']}/code")
    transformer = Transformer(handler(sys.argv[1]))
    answers = []
    for body, content_type, accept in given["requests"]:
        found: dict[str, Any] = {"failed": False}
        headers = {"Content-Type": content_type, **({"Accept": accept} if accept else {})}
        context = SimpleNamespace(
            system_properties={"model_dir": given["model"]},
            request_processor=[SimpleNamespace(get_request_properties=lambda headers=headers: headers)],
            set_response_content_type=lambda _, kind, found=found: found.update(kind=kind),
            set_response_status=lambda found=found, **_: found.update(failed=True),
        )
        [answer] = transformer.transform([{"body": base64.b64decode(body)}], context)
        raw = answer.encode() if isinstance(answer, str) else bytes(answer)
        text = None if found["failed"] else base64.b64encode(raw).decode()
        answers.append([text, found.get("kind")])
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
