"""Completes what a node is sent with what is known of the run only when an attempt starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.engines.keeping.recording import Recording
from windlass.runs.attempts import asked_to_resume, resume_environment


def completed(request: Mapping[str, Any], record: Recording) -> dict[str, Any]:
    """A node's request with what is known of this run only by now."""
    asked = asked_to_resume(request, record.status, record.writer.events())
    found = {**asked, "env": {**request["env"], **resume_environment(record.status)}}
    if "notices" in request:  # what was heeded already is not heeded again
        found["notices"] = {**request["notices"], "known": record.history.obeyed}
    return found
