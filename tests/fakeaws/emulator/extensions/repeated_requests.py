"""Repeated requests: ministack does again, or refuses, what an SDK sends again because it has lost the answer.

On a busy machine Terraform's provider now and then closes a connection as the head of an answer arrives, and sends the
request again. A NAT gateway was made twice, and a mount target was refused as one that existed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final

import ministack.app

ID: Final = b"amz-sdk-invocation-id"
"""The header by which SDKs mark all tries of one request."""
KEPT: Final = 1000
"""Answers that are kept, of the newest requests."""
Message = dict[str, Any]
Send = Callable[[Message], Awaitable[None]]


def extend() -> None:
    """Answer a repeated request as the first one was answered, where that was a success."""
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
    """Whether a whole answer was given that an SDK takes for a success."""
    if not messages or messages[-1].get("more_body", False) or messages[-1]["type"] != "http.response.body":
        return False
    return 200 <= int(messages[0].get("status", 0)) < 300
