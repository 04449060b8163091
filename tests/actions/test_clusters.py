"""`cluster down` refuses while services are up; forced, it closes them and names targets that did not list theirs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from windlass.actions import clusters
from windlass.clusters import down as removal
from windlass.clusters.find import StageStarted, Warned
from windlass.errors import EngineError, UsageError
from windlass.runs.context import Context
from windlass.views.services import ServiceList, UnansweredTarget

VISION: Any = SimpleNamespace(cluster=SimpleNamespace(name="vision"))
UP: Any = SimpleNamespace(kind="notebook", name="notebook-7f3k2", phase="up", target="vision")
LISTS = {
    "vision": ServiceList((UP,), ()),
    "vision-sagemaker": ServiceList((), (UnansweredTarget("vision-sagemaker", "access denied"),)),
}


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the services that were closed; the removal of clusters asks for its confirmation, and does no more."""
    names: list[str] = []

    def close(name: str, _target: str, _context: Context, _on_line: object) -> None:
        names.append(name)
        raise EngineError("it does not answer")

    def down(
        _named: object, _context: object, _on_event: object, confirm: Any, _stop: object, **_options: bool
    ) -> None:
        confirm(None, None)

    monkeypatch.setattr(clusters, "target_names", lambda _context: ["local", *LISTS])
    monkeypatch.setattr(clusters, "list_all", lambda _context, name: LISTS[name])
    monkeypatch.setattr(clusters, "close", close)
    monkeypatch.setattr(removal, "down", down)
    return names


def removed(tmp_path: Path, *, force: bool, is_confirmed: bool = True) -> list[str]:
    """Removes the cluster and returns the headings of the stages and the warnings."""
    events: list[Any] = []
    context, stop = Context({}, tmp_path), SimpleNamespace()
    clusters.down(VISION, context, events.append, lambda *_: is_confirmed, stop, force=force)  # type: ignore[arg-type]
    return [one.text for one in events if isinstance(one, StageStarted | Warned)]


def test_down_refuses_while_a_service_is_up(closed: list[str], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="1 services use vision: notebook notebook-7f3k2 is up"):
        removed(tmp_path, force=False)
    assert closed == []


def test_forced_down_names_unknown_services_before_the_confirmation_and_closes_the_others_after_it(
    closed: list[str], tmp_path: Path
) -> None:
    unknown = "services of vision-sagemaker are unknown and will not be closed: access denied"
    assert removed(tmp_path, force=True, is_confirmed=False) == [unknown]
    assert closed == []
    assert removed(tmp_path, force=True) == [
        unknown,
        "closing notebook notebook-7f3k2 on vision",
        "notebook-7f3k2 was not closed: it does not answer",
    ]
    assert closed == ["notebook-7f3k2"]
