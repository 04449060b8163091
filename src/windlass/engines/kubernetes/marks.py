"""What is said of a run as a whole in its cluster, for whoever has no record of it: that it is to end, that it has.

A mark is a ConfigMap that the run's anchor owns, made by rights that a run needs anyway. `stop` is a wish, and the
keeper of the run, on whichever machine, takes it for one of its own user's; `end` says that no other attempt follows.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any, Final

from windlass.engines.kubernetes import layout, manifests
from windlass.engines.kubernetes.client import PLURALS, Client, Refused
from windlass.runs.wish import Wish, read_wish, write_wish

STOP: Final = "stop"
END: Final = "end"
ELSEWHERE: Final = "elsewhere"
REMOVED: Final = "removed"
"""Reasons of a wish: it was asked for on another machine; the run was removed from the cluster."""

AGAIN_SECONDS: Final = 0.5
CONFIRM_SECONDS: Final = 2.0
"""Between the two answers by which an object counts as deleted."""


def put(client: Client, anchor: dict[str, Any], mark: str, *, now: bool = False, **said: str) -> None:
    """Mark a run, whose anchor is given; one that is marked already stays so. Raises EngineError.

    `now` is of a wish: without the ranks' grace period. `said` is what else the mark says.
    """
    meta = anchor["metadata"]
    made: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": layout.mark_name(meta["name"], mark),
            "namespace": meta["namespace"],
            "labels": {
                **meta["labels"],
                layout.MARK_LABEL: mark,
                **({layout.HOW_LABEL: said["how"]} if "how" in said else {}),
            },
        },
        "data": {**({"now": "true"} if now else {}), **said},
    }
    try:
        client.create(manifests.owned(made, anchor))
    except Refused as error:
        if error.status != 409:
            raise
        if now:
            client.delete("v1", "ConfigMap", made["metadata"]["name"])
            client.create(manifests.owned(made, anchor))


def asked(client: Client, run_id: str) -> Wish | None:
    """What somebody on another machine wishes of a run: to stop, or by removing its anchor, to be gone.

    Raises EngineError.
    """
    found = _get(client, layout.mark_name(run_id, STOP))
    if found is not None:
        return Wish(now=found.get("data", {}).get("now") == "true", reason=ELSEWHERE)
    anchor = there(client, "v1", "ConfigMap", run_id)
    is_gone = anchor is None or "deletionTimestamp" in anchor["metadata"]
    return Wish(now=True, reason=REMOVED) if is_gone else None


def tell_end(client: Client, run_id: str, *, stopped: bool, well: bool) -> None:
    """Say that no other attempt follows, whether somebody has asked for that, and whether all ranks have ended well.

    Pods that are made all the same read it, and do not train (`boot.py`). Raises EngineError.
    """
    anchor = _get(client, run_id)
    if anchor is None or "deletionTimestamp" in anchor["metadata"]:
        return  # the run was removed
    put(client, anchor, END, how="well" if well else "badly")
    if stopped:
        put(client, anchor, STOP)


def forget(client: Client, run_id: str) -> None:
    """The run goes on: what was said of its end does not hold. Raises EngineError."""
    for mark in (STOP, END):
        client.delete("v1", "ConfigMap", layout.mark_name(run_id, mark))


def _get(client: Client, name: str) -> dict[str, Any] | None:
    try:
        return client.get("v1", "ConfigMap", name)
    except Refused as error:
        if error.status != 404:
            raise
        return None


def there(
    client: Client, api: str, kind: str, name: str, *, confirm_seconds: float = CONFIRM_SECONDS
) -> dict[str, Any] | None:
    """An object; None where the API server says twice, some seconds apart, that it is not there.

    A 404 that is not about this object, as of a proxy or of an API that is not served now, is an error like any other.
    Raises EngineError.
    """
    for is_first in (True, False):
        try:
            return client.get(api, kind, name)
        except Refused as error:
            if not is_not_found(error, kind, name):
                raise
        if is_first:
            time.sleep(confirm_seconds)
    return None


def is_not_found(error: Refused, kind: str, name: str) -> bool:
    """Whether the API server itself says that this object is not there."""
    about = (error.details.get("name"), str(error.details.get("kind", "")).lower())
    return error.status == 404 and error.reason == "NotFound" and about in ((name, PLURALS[kind]), (name, kind.lower()))


class Ear:
    """Hears what somebody on another machine wishes of a run, and leaves it where the run's keeper looks for wishes."""

    def __init__(self, client: Client, run_id: str, run_dir: Path) -> None:
        self._client = client
        self._run_id = run_id
        self._run_dir = run_dir
        self._listened_at = float("-inf")

    def listen(self) -> None:
        """Ask once more, unless that was just done. Raises EngineError."""
        now = time.monotonic()
        if now - self._listened_at < AGAIN_SECONDS:
            return
        wish = asked(self._client, self._run_id)
        self._listened_at = now
        # Whoever sits here may have wished for more by now, and what they wished holds.
        if wish is not None and (wish.now or read_wish(self._run_dir) is None):
            with contextlib.suppress(OSError):  # a full disk: asked again at the next turn
                write_wish(self._run_dir, wish)
