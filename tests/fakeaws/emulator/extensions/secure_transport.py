"""TLS: a policy that refuses plain http refuses every request to an emulator on loopback, which has no TLS.

Where identity policies are enforced, requests count as sent over TLS, so that such policies need no exception in tests.
"""

from __future__ import annotations

from typing import Any

from ministack.core import iam_evaluator


def extend() -> None:
    """Answer the condition key aws:SecureTransport with true."""
    resolve = iam_evaluator._resolve_condition_key

    def resolved(key: str, context: Any) -> Any:
        return "true" if key.lower() == "aws:securetransport" else resolve(key, context)

    iam_evaluator._resolve_condition_key = resolved
