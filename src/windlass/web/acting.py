"""Actions on runs: stop, resume, rerun and note, each confirmed by a form; only with `--allow-actions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from windlass.actions import runs
from windlass.engines import engine_class
from windlass.errors import UsageError
from windlass.runs.store import NOTE_CHARS
from windlass.views.pages import ConfirmPage
from windlass.web.pages import actions_for
from windlass.web.security import is_csrf_valid

if TYPE_CHECKING:
    from starlette.requests import Request

    from windlass.web.render import Renderer
    from windlass.web.site import Site

ACTIONS: Final = ("stop", "resume", "rerun", "note")
MAX_FORM: Final = 64 << 10
"""Maximum bytes of a form."""


async def respond(site: Site, renderer: Renderer, request: Request) -> Response:
    """Returns the confirmation form of an action (GET), or performs the action (POST). Raises HTTPException,
    WindlassError.
    """
    run_id, action = request.path_params["run_id"], request.path_params["action"]
    if action not in ACTIONS:
        raise HTTPException(404, "there is no such action")
    if not site.may_act:
        raise HTTPException(403, "this page is read-only: start it with windlass ui --allow-actions")
    if request.method != "POST":
        view = await run_in_threadpool(_confirmation, site, run_id, action)
        return renderer.page("confirm.html", view, request.scope)
    form = await _form(request)
    if not is_csrf_valid(request.scope, request.headers.get("x-csrf-token") or form.get("csrf", "")):
        raise HTTPException(403, "the form is not of this session: reload the page")
    after = await run_in_threadpool(take, site, run_id, action, form.get("text", ""))
    return RedirectResponse(f"/runs/{after}", 303)


async def _form(request: Request) -> dict[str, str]:
    """Returns the fields of a URL-encoded form. Raises HTTPException."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM:
            raise HTTPException(413, "the form is too large")
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=16)
    except ValueError as error:
        raise HTTPException(400, "the form has too many fields") from error
    return {name: values[0] for name, values in fields.items()}


def _confirmation(site: Site, run_id: str, action: str) -> ConfirmPage:
    with site.records.open() as store:
        status = store.status(run_id)
    return ConfirmPage(run_id, action, status.phase, status.about.note)


def take(site: Site, run_id: str, action: str, text: str) -> str:
    """Performs an action on a run. Returns the id of the run to show, which for `rerun` is the new run.

    Raises NoSuchRun, UsageError if the run does not allow the action now, WindlassError.
    """
    with site.records.open() as store:
        status = store.status(run_id)
        if action not in actions_for(site, status):
            raise UsageError(f"{action} is not possible: {run_id} is {status.phase}")
        engine = runs.engine_for(run_id, store)
        if action == "stop":
            engine.stop(run_id)
        elif action == "resume":
            runs.resume(run_id, engine, site.context)
        elif action == "rerun":
            plan = runs.rerun_plan(engine, run_id, None, {}, (), site.context)
            plan.require_runnable()
            return runs.submit(engine_class(plan.engine).connect(store), plan, site.context).id
        else:
            words = text.strip()
            if len(words) > NOTE_CHARS:
                raise UsageError(f"a note has {NOTE_CHARS:,} characters at most; this one has {len(words):,}")
            engine.write_note(run_id, words)
    return run_id
