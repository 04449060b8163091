"""Options of the model server, for its own command line and for `windlass serve`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

MAX_BODY_BYTES = 6 << 20
"""Default limit of a request body; the limit of SageMaker's real-time endpoints was the same for years."""


@dataclass(frozen=True)
class Model:
    """The model that a worker process loads. The help of the options explains the fields."""

    path: str
    code: str = ""
    function: str = ""
    allow_pickle: bool = False
    is_batched: bool = False
    """Whether the model must answer several requests in one call."""


class Option(NamedTuple):
    """An option of the server."""

    name: str
    metavar: str
    default: Any
    """Default value. Values of the option have the same type, and numbers must be positive."""
    help: str


OPTIONS = (
    Option(
        "host", "ADDRESS", "127.0.0.1", "Address to listen on. Default: 127.0.0.1, which only this machine reaches."
    ),
    Option("workers", "N", 0, "Processes with the model. Default: one for each GPU, otherwise 1."),
    Option("batch", "N", 1, "Requests that the model answers in one call, by predict_batch. Default: 1."),
    Option("batch-wait", "MS", 0.0, "Milliseconds for which a batch waits for more requests. Default: 0."),
    Option("queue", "N", 100, "Requests that may wait; further ones are answered with 503. Default: 100."),
    Option("max-body", "BYTES", MAX_BODY_BYTES, "Largest body of a request. Default: 6 MiB."),
    Option("time-limit", "S", 60.0, "Seconds for an answer of the model; then 504. Default: 60."),
    Option("body-limit", "S", 30.0, "Seconds in which a body must arrive; then 408. Default: 30."),
    Option("idle-limit", "S", 0.0, "End after S seconds without a request."),
    Option("code", "FILE", "", "predict.py or inference.py that is not in the folder of the model."),
    Option("function", "FILE:NAME", "", "Function that makes the module of a state dict. Default: model.py:model."),
    Option("token-file", "FILE", "", "Requests must carry the token in FILE: Authorization: Bearer TOKEN."),
    Option("certificate", "FILE", "", "TLS certificate (PEM); needs --key."),
    Option("key", "FILE", "", "Private key of the certificate (PEM)."),
    Option("ready-file", "FILE", "", "Write JSON with port and pid to FILE when the server listens."),
)


@dataclass(frozen=True)
class Settings:
    """Values of the options."""

    model: Model
    host: str
    port: int
    workers: int
    batch: int
    batch_wait_seconds: float
    queue: int
    max_body_bytes: int
    time_limit_seconds: float
    body_limit_seconds: float
    idle_limit_seconds: float
    """0 for no limit."""
    token: str
    """Empty for none."""
    certificate: str
    key: str
    ready_file: str


def gpu_names() -> list[str]:
    """Returns the names of the visible NVIDIA GPUs for CUDA_VISIBLE_DEVICES, without loading the driver."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        names = [name.strip() for name in listed.split(",")]
        return names[: names.index("-1")] if "-1" in names else [name for name in names if name]
    return [str(number) for number in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]
