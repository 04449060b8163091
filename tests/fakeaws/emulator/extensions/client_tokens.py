"""Client tokens of EC2: ministack makes a second thing where an SDK repeats a request whose answer was lost.

A NAT gateway was made twice so, and the first one was never in Terraform's state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ministack.services import ec2


def extend() -> None:
    """Answer a repeated request as the first one was answered."""
    answers: dict[tuple[str, str, str, str], Any] = {}

    def once(action: str, handle: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
        def handled(params: dict[str, Any]) -> Any:
            token = ec2._p(params, "ClientToken")
            if not token:
                return handle(params)
            key = (ec2.get_account_id(), ec2.get_region(), action, token)
            if key not in answers:
                answer = handle(params)
                if answer[0] != 200:
                    return answer
                answers[key] = answer
            status, headers, body = answers[key]
            return status, dict(headers), body

        return handled

    # After the extensions that replace handlers.
    for action, handle in list(ec2._ACTION_MAP.items()):
        if action.startswith(("Create", "Run", "Allocate")):
            ec2._ACTION_MAP[action] = once(action, handle)
