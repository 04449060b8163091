"""TLS: a policy that denies plain http would deny every request to the emulator, which has no TLS.

If identity policies are enforced, requests count as sent over TLS, so such policies need no exception in tests.
"""

from __future__ import annotations

from typing import Any

from ministack.core import iam_evaluator


def extend() -> None:
    """Sets the condition key aws:SecureTransport to true."""
    resolve = iam_evaluator._resolve_condition_key

    def resolved(key: str, context: Any) -> Any:
        return "true" if key.lower() == "aws:securetransport" else resolve(key, context)

    iam_evaluator._resolve_condition_key = resolved
