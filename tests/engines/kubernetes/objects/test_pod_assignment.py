"""The ConfigMap of an attempt is read back, and one that others have changed is refused by name."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import pytest

from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.pod_assignment import PodAssignment, beginning_pods, config_data
from windlass.engines.kubernetes.objects.pods import PodId
from windlass.errors import EngineError
from windlass.worker import protocol
from windlass.worker.protocol import NodeSpec, RankSpec

SPEC = NodeSpec(0, "train.py", "python", "/", {}, (RankSpec(0, 0, ("x",), {}),), 1.0)
META = {"name": "digits-ab12-1", "labels": {layout.ATTEMPT_LABEL: "1"}}


def config(**changes: Any) -> dict[str, Any]:
    return {"metadata": META, **config_data(PodAssignment.new(1, 1), [SPEC], 1), **changes}


def packed(text: str) -> dict[str, Any]:
    return {layout.NODES_FILE: base64.b64encode(gzip.compress(text.encode())).decode()}


def test_specs_of_an_attempt_are_read_back() -> None:
    assert beginning_pods(config()) == {PodId(1, 0): SPEC}


@pytest.mark.parametrize(
    "changes",
    [
        {"binaryData": None},
        {"binaryData": {}},
        {"binaryData": {layout.NODES_FILE: "H4sI"}},
        {"binaryData": {layout.NODES_FILE: "!"}},
        {"binaryData": packed("[]")},
        {"binaryData": packed("[" * 100_000)},
        {"binaryData": packed(json.dumps({"attempt": 1, "common": {"env": {}}, "nodes": {"x": {}}}))},
        {"data": {layout.SPARES_FILE: "[]"}},
        {"data": {layout.SPARES_FILE: '{"0": [1]}'}},
        {"data": {layout.SPARES_FILE: '{"0": [1e999, 0]}'}},
    ],
)
def test_specs_that_others_have_changed_are_refused_by_the_name_of_their_object(changes: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="ConfigMap digits-ab12-1 was changed, and cannot be read"):
        beginning_pods(config(**changes))


def test_size_of_unpacked_specs_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(EngineError, match="cannot be read"):
        beginning_pods(config(binaryData=packed(" " * 100_000)))
