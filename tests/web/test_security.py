"""Access to the page: links, sessions, hosts, origins, headers."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient
from tests.web.page import BASE, Page
from tests.web.records import HOSTILE

from windlass.web.security import HEADERS


def test_page_without_a_session_is_refused(page: Page) -> None:
    for path in ("/", "/runs.json", "/targets", "/events", "/runs/digits-7f3k2"):
        assert page.stranger().get(path).status_code == 401


def test_wrong_token_is_refused(page: Page) -> None:
    client = page.stranger()
    assert client.get("/start", params={"token": "guess"}).status_code == 403
    assert client.get("/").status_code == 401


def test_link_starts_one_session_and_is_used_up(page: Page) -> None:
    token = page.site.sessions.new_token("/targets")
    client = page.stranger()
    found = client.get("/start", params={"token": token})
    assert found.status_code == 200
    assert 'url=/targets"' in found.text
    cookie = found.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert client.get("/").status_code == 200
    again = page.stranger().get("/start", params={"token": token})
    assert again.status_code == 403
    assert "windlass open --no-open" in again.text


def test_preview_of_a_link_does_not_use_it_up(page: Page) -> None:
    token = page.site.sessions.new_token()
    assert page.stranger().head("/start", params={"token": token}).status_code == 405
    assert page.stranger().get("/start", params={"token": token}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example:8421", "127.0.0.1.evil.example", "192.168.1.9:8421", "", "a@localhost"])
def test_foreign_host_is_refused_even_with_a_session(page: Page, host: str) -> None:
    found = page.client.get("/", headers={"host": host})
    assert found.status_code == 403
    assert page.client.get("/static/style.css", headers={"host": host}).status_code == 403


def test_every_response_has_the_security_headers(page: Page) -> None:
    responses = [
        page.client.get("/"),
        page.client.get("/runs.json"),
        page.client.get("/nothing"),
        page.client.get("/static/style.css"),
        page.client.get("/runs/none"),
        page.stranger().get("/"),
        page.stranger().get("/start"),
        page.client.get("/", headers={"host": "evil.example"}),
    ]
    for found in responses:
        differ = {name for name in HEADERS if found.headers[name] != HEADERS[name]}
        assert differ <= {"cache-control", "referrer-policy"}
        assert found.headers["cache-control"] == ("no-cache" if "/static/" in str(found.url) else "no-store")
    policy = HEADERS["content-security-policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {},
        {"origin": BASE, "sec-fetch-site": "cross-site"},
        {"origin": BASE, "sec-fetch-site": "same-site"},
        {"origin": "http://localhost:1"},
    ],
)
def test_post_of_another_site_is_refused(acting: Page, headers: dict[str, str]) -> None:
    form = {"csrf": acting.csrf, "text": "changed"}
    found = acting.client.post(f"/runs/{acting.run_id}/actions/note", data=form, headers=headers)
    assert found.status_code == 403
    assert acting.note() == HOSTILE


@pytest.mark.parametrize("csrf", ["", "0" * 64, "é"])
def test_post_without_the_token_of_the_session_is_refused(acting: Page, csrf: str) -> None:
    found = acting.post("note", {"csrf": csrf, "text": "changed"})
    assert found.status_code == 403
    assert acting.note() == HOSTILE


def test_action_is_taken_with_token_and_origin(acting: Page) -> None:
    found = acting.post("note", {"csrf": acting.csrf, "text": "batch 64"})
    assert (found.status_code, found.headers["location"]) == (303, f"/runs/{acting.run_id}")
    assert acting.note() == "batch 64"


def test_form_with_too_many_fields_is_refused(acting: Page) -> None:
    fields = {f"field{number}": "x" for number in range(20)}
    assert acting.post("note", {"csrf": acting.csrf, **fields}).status_code == 400


def test_get_never_changes_a_run(acting: Page) -> None:
    found = acting.client.get(f"/runs/{acting.run_id}/actions/note", params={"csrf": acting.csrf, "text": "changed"})
    assert found.status_code == 200
    assert acting.note() == HOSTILE


@pytest.mark.parametrize("action", ["stop", "resume", "rerun", "note"])
def test_read_only_page_refuses_and_offers_no_action(page: Page, action: str) -> None:
    assert page.post(action, {"csrf": page.csrf, "text": "x"}).status_code == 403
    assert page.client.get(f"/runs/{page.run_id}/actions/{action}").status_code == 403
    assert "/actions/" not in page.client.get(f"/runs/{page.run_id}").text


def test_links_are_handed_out_for_the_secret_alone(page: Page) -> None:
    client = page.stranger()

    def ask(path: str = "/", **headers: str) -> int:
        status_code: int = client.post("/link", params={"path": path}, headers=headers).status_code
        return status_code

    assert ask() == 403
    assert ask(authorization="Bearer guess") == 403
    known = f"Bearer {page.site.secret}"
    assert ask(authorization=known, origin=BASE) == 403
    assert ask("//evil.example", authorization=known) == 400
    assert ask("/\\evil.example", authorization=known) == 400
    assert ask("/runs/digits-7f3k2", authorization=known) == 200


def test_cookie_of_another_port_is_no_session(page: Page) -> None:
    session, _ = page.site.sessions.exchange(page.site.sessions.new_token()) or ("", "")
    client = TestClient(page.app, BASE, cookies={"windlass-1": session})
    assert client.get("/").status_code == 401
