"""Renders views as HTML, by templates that escape every value, and as JSON."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import jinja2
from starlette.responses import Response

import windlass
from windlass.cli.formatting import duration, money, number, size, visible
from windlass.runs.metrics import as_json
from windlass.views.pages import RefusalPage
from windlass.views.serialise import to_json
from windlass.web.security import csrf_token

if TYPE_CHECKING:
    from collections.abc import Mapping

    from windlass.web.site import Site

TEMPLATES: Final = Path(__file__).parent / "templates"
LAST_SECONDS: Final = 253_402_300_799
"""End of the year 9999, the last one that a page can show; the time of a file may be later."""


def make_environment() -> jinja2.Environment:
    """Returns the template environment. Unknown names in templates are errors, and every value is escaped."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "duration": duration,
        "size": size,
        "number": number,
        "money": money,
        "visible": lambda value: visible(str(value)),
        "time": _time,
        "path": lambda text: quote(str(text), safe="/"),
        "query": lambda pairs: urlencode({name: value for name, value in pairs.items() if value not in ("", None)}),
    }
    return made


def _time(seconds: float) -> str:
    """Formats Unix seconds in UTC, for the attribute `datetime` of the element `time`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(min(seconds, LAST_SECONDS)))


class Renderer:
    """Makes the responses of one server."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._environment = make_environment()

    def page(self, template: str, view: Any, scope: Mapping[str, Any], status: int = 200, **more: Any) -> Response:
        """Returns a template rendered with a view. The template also has the names `path`, `csrf`, `has_session`,
        `may_act`, `now`, `version`, and those in `more`.

        Characters that UTF-8 cannot encode, such as undecodable bytes of a file name, are shown as `?`.
        """
        session = scope.get("windlass.session", "")
        text = self._environment.get_template(template).render(
            view=view,
            path=scope["path"],
            csrf=csrf_token(session) if session else "",
            has_session=bool(session),
            may_act=self._site.may_act,
            now=self._site.now(),
            version=windlass.__version__,
            **more,
        )
        return Response(text.encode(errors="replace"), status, media_type="text/html")

    def refusal(self, status: int, message: str, hint: str, scope: Mapping[str, Any], *, is_json: bool) -> Response:
        """Returns the response to a request that was refused or has failed."""
        view = RefusalPage(status, message, hint)
        return json_response(view, status) if is_json else self.page("refusal.html", view, scope, status)


def json_response(view: Any, status: int = 200) -> Response:
    """Returns a view as JSON. NaN and infinities, which JSON lacks, become the strings `nan`, `inf` and `-inf`."""
    data = to_json(view)
    try:
        text = json.dumps(data, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(data))
    return Response(text, status, media_type="application/json")


def _finite(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return as_json(data)
    if isinstance(data, dict):
        return {name: _finite(value) for name, value in data.items()}
    return [_finite(value) for value in data] if isinstance(data, list) else data
