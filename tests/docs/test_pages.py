"""The pages say only what is so: links resolve, job files parse, commands and chores exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from windlass.cli.main import cli
from windlass.engines import target_model
from windlass.spec.parse import parse_cluster, parse_job, parse_targets

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
FENCE = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (?P<title>.*)$", re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, kind: str) -> Iterator[tuple[str, str]]:
    """Text and `file:line` of each fenced block whose opening line matches `kind`."""
    text = page.read_text()
    for found in FENCE.finditer(text):
        if re.fullmatch(kind, found["kind"]):
            yield found["text"], f"{name_of(page)}:{text.count(chr(10), 0, found.start()) + 1}"


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The anchors that mkdocs makes of a page's headings, and those that the page sets."""
    titles = [re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", found["title"]) for found in HEADING.finditer(prose(page))]
    made = {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}
    return made | set(re.findall(r'<a id="([^"]+)"', prose(page)))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_internal_links_resolve(page: Path) -> None:
    missing = []
    for found in LINK.finditer(re.sub(r"`[^`\n]*`", "", prose(page))):
        path, _, anchor = found["target"].partition("#")
        if re.match(r"[a-z]+:", found["target"]):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(found["target"])
    assert not missing


def is_job_file(text: str) -> bool:
    return bool(re.search(r"^name: ", text, re.MULTILINE) and re.search(r"^(run|command):", text, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_in_pages_parse(page: Path) -> None:
    for text, where in blocks(page, r"yaml|yaml .*"):
        if is_job_file(text):
            parse_job(text, where)
    for text, where in blocks(page, r'yaml title="job\.yaml"'):
        parse_job(text, where)
    for text, where in blocks(page, r'yaml title="[^"]*targets\.yaml"'):
        parse_targets(text, where, target_model)
    for text, where in blocks(page, r'yaml title="cluster\.yaml"'):
        parse_cluster(text, where)


def test_the_site_names_every_page() -> None:
    """`make docs` refuses a page that is missing, and runs later."""
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = [str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")]
    assert [page for page in pages if f" {page}\n" not in navigation] == []


def test_the_pages_show_job_files() -> None:
    assert sum(is_job_file(text) for page in PAGES for text, _ in blocks(page, r"yaml|yaml .*")) >= 5


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_in_pages_compiles(page: Path) -> None:
    for text, where in blocks(page, "python"):
        compile(text, where, "exec")


def shown_commands(page: Path) -> Iterator[tuple[list[str], str]]:
    """Words and place of each `windlass` command that a page shows, in console blocks and in its sentences."""
    for text, where in blocks(page, "console"):
        for line in text.splitlines():
            if line.startswith("$ windlass"):
                yield shlex.split(re.split(r" [|>] ", line[2:])[0], comments=True), where
    for found in re.finditer(r"`(windlass [a-z][^`]*)`", prose(page)):
        yield shlex.split(found[1]), f"{name_of(page)}: {found[0]}"


def refusal(words: list[str]) -> str:
    """What the command line says against these words; empty if they are a command with options that exist.

    A command of a group may be named without its arguments.
    """
    if words[1:] == ["--version"]:
        return ""
    context = click.Context(cli, info_name="windlass", **cli.context_settings)  # a command keeps its names of help
    try:
        rest = words[1:]
        while rest:
            assert isinstance(context.command, click.Group)
            name, command, rest = context.command.resolve_command(context, rest)
            assert command is not None
            context = command.make_context(name, rest, parent=context)
            rest = context._protected_args + context.args if isinstance(command, click.Group) else []
    except click.exceptions.Exit:  # `--help` has printed
        return ""
    except (click.MissingParameter, click.BadOptionUsage) as error:
        return error.format_message() if context.parent is None else ""
    except click.ClickException as error:
        return error.format_message()
    return ""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_shown_commands_exist_with_their_options(page: Path) -> None:
    refused = [
        f"{where}: {shlex.join(words)}: {said}" for words, where in shown_commands(page) if (said := refusal(words))
    ]
    assert not refused


def test_a_command_that_does_not_exist_would_be_noticed() -> None:
    assert "no-such" in refusal(["windlass", "no-such"])
    assert "no-such" in refusal(["windlass", "data", "no-such"])
    assert "--no-such" in refusal(["windlass", "ps", "--no-such"])
    assert "--no-such" in refusal(["windlass", "data", "copy", "a", "b", "--no-such"])
    assert "--no-such" in refusal(["windlass", "checkpoints", "RUN", "verify", "--no-such"])


def test_shown_chores_exist() -> None:
    chores = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = {
        word
        for page in PAGES
        for line in [*(text for text, _ in blocks(page, "console")), *re.findall(r"`(make [a-z -]+)`", prose(page))]
        for words in re.findall(r"^(?:\$ )?make ([a-z -]+)$", line, re.MULTILINE)
        for word in words.split()
    }
    assert shown
    assert shown <= chores
