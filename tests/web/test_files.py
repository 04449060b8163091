"""Results are downloaded from their folder alone: no path and no link leads elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.web.page import Page

from windlass.runs.metrics import FILE
from windlass.runs.store import Store
from windlass.web.files import open_below

SECRET = "not among the results"


@pytest.fixture
def output(page: Page) -> Path:
    """The folder of the results, beside a file that is none."""
    with Store(page.home) as store:
        folder = store.run_dir(page.run_id) / "output"
    (folder.parent / "secret.txt").write_text(SECRET)
    (folder / "inner").mkdir()
    (folder / "inner" / "a b.bin").write_bytes(b"\x00\x01")
    (folder / "link.txt").symlink_to(folder.parent / "secret.txt")
    (folder / "out").symlink_to(folder.parent)
    os.mkfifo(folder / "pipe")
    return folder


def test_result_is_an_attachment(page: Page, output: Path) -> None:
    found = page.client.get(f"/runs/{page.run_id}/artifacts/files/inner/a%20b.bin")
    assert found.content == b"\x00\x01"
    assert found.headers["content-disposition"] == "attachment; filename*=UTF-8''a%20b.bin"
    assert found.headers["content-type"] == "application/octet-stream"
    assert found.headers["x-content-type-options"] == "nosniff"


def test_head_of_a_result_has_its_size(page: Page, output: Path) -> None:
    found = page.client.head(f"/runs/{page.run_id}/artifacts/files/inner/a%20b.bin")
    assert (found.content, found.headers["content-length"]) == (b"", "2")


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt", "..%2Fsecret.txt", "%2e%2e/secret.txt", "inner/../../secret.txt", "/etc/passwd",
        "%2Fetc%2Fpasswd", "link.txt", "out/secret.txt", "pipe", "inner", "", ".", "inner//a b.bin", "a%00b",
    ],
)  # fmt: skip
def test_path_that_leads_elsewhere_is_not_found(page: Page, output: Path, path: str) -> None:
    found = page.client.get(f"/runs/{page.run_id}/artifacts/files/{path}")
    assert found.status_code == 404
    assert SECRET not in found.text


def test_folder_is_listed_without_links(page: Page, output: Path) -> None:
    found = page.client.get(f"/runs/{page.run_id}/artifacts.json").json()
    assert {row["name"] for row in found["files"]} >= {"inner", "model.txt"}
    assert not {"link.txt", "out", "pipe"} & {row["name"] for row in found["files"]}
    inner = page.client.get(f"/runs/{page.run_id}/artifacts.json", params={"path": "inner"}).json()
    assert [(row["path"], row["bytes"]) for row in inner["files"]] == [("inner/a b.bin", 2)]


def test_names_that_no_url_leads_to_are_listed_without_a_link(page: Page, output: Path) -> None:
    for name in (b"\xff.bin", b"\xff"):
        (output / os.fsdecode(name)).mkdir()
    os.utime(output / "model.txt", (0, 1 << 60))
    assert page.client.get(f"/runs/{page.run_id}/artifacts").status_code == 200
    found = page.client.get(f"/runs/{page.run_id}/artifacts.json").json()["files"]
    paths = {row["name"]: row["path"] for row in found}
    assert (paths["\udcff.bin"], paths["model.txt"]) == ("", "model.txt")


def test_file_of_the_record_that_cannot_be_read_is_named(page: Page) -> None:
    with Store(page.home) as store:
        path = store.run_dir(page.run_id) / FILE
    path.unlink()
    path.mkdir()
    found = page.client.get(f"/runs/{page.run_id}/metrics.json")
    assert (found.status_code, str(path) in found.json()["message"]) == (500, True)


@pytest.mark.parametrize("path", ["..", "../..", "out", "inner/../..", "/etc"])
def test_no_other_folder_is_listed(page: Page, output: Path, path: str) -> None:
    found = page.client.get(f"/runs/{page.run_id}/artifacts.json", params={"path": path}).json()
    assert found["files"] == []


def test_link_in_place_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("x")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "here").symlink_to(tmp_path / "there")
    with pytest.raises(FileNotFoundError):
        open_below(tmp_path / "results", "here/file")


@pytest.mark.parametrize("rank", ["../0", "-1", "0/../../secret", "1e3", "٣"])
def test_rank_of_a_log_is_a_number(page: Page, rank: str) -> None:
    found = page.client.get(f"/runs/{page.run_id}/logs/lines.json", params={"attempt": "1", "rank": rank})
    assert found.status_code == 400
    found = page.client.get(f"/runs/{page.run_id}/logs/search.json", params={"text": "x", "attempt": rank, "rank": "0"})
    assert found.status_code == 400


def test_only_files_of_the_package_are_static(page: Page) -> None:
    assert page.client.get("/static/style.css").status_code == 200
    for name in ("..%2Fapp.py", "../app.py", "none.css", "%2Fetc%2Fpasswd", "%2e%2e", "..%2F..%2Fpy.typed"):
        assert page.client.get(f"/static/{name}").status_code == 404


def test_unchanged_static_file_is_not_sent_again(page: Page) -> None:
    first = page.client.get("/static/style.css")
    again = page.client.get("/static/style.css", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
