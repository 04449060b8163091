"""Repeated requests: ministack repeats or rejects a request that an SDK sends again after a lost response.

On a busy machine, Terraform's provider sometimes closes a connection while the response header arrives, and sends the
request again. Without this extension, a NAT gateway was created twice, and a mount target was rejected as existing.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final

import ministack.app

ID: Final = b"amz-sdk-invocation-id"
"""Header with which SDKs mark all attempts of one request."""
KEPT: Final = 1000
"""Number of responses that are kept, for the newest requests."""
Message = dict[str, Any]
Send = Callable[[Message], Awaitable[None]]


def extend() -> None:
    """Answers a repeated request with the first response, if that was a success."""
    serve = ministack.app.app
    answers: OrderedDict[bytes, asyncio.Future[list[Message]]] = OrderedDict()

    async def served(scope: Message, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
        id = dict(scope.get("headers") or ()).get(ID)
        if id is None:
            await serve(scope, receive, send)
            return
        if (first := answers.get(id)) is not None and (messages := await first):
            for message in messages:
                await send(message)
            return
        answers[id] = answer = asyncio.get_running_loop().create_future()
        messages = []

        async def kept(message: Message) -> None:
            messages.append(message)
            await send(message)

        try:
            await serve(scope, receive, kept)
        finally:
            answer.set_result(messages if _is_success(messages) else [])
            while len(answers) > KEPT:
                answers.popitem(last=False)

    ministack.app.app = served


def _is_success(messages: list[Message]) -> bool:
    """Whether a complete response was sent that an SDK accepts as success."""
    if not messages or messages[-1].get("more_body", False) or messages[-1]["type"] != "http.response.body":
        return False
    return 200 <= int(messages[0].get("status", 0)) < 300
