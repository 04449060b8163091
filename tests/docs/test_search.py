"""What users search for in the site is found: the ranking of its search, computed as the theme computes it.

The theme's worker (`assets/javascripts/workers/search.*.js` of Material for MkDocs 9) asks lunr for each word with a
trailing wildcard, multiplies a score by `1 + g²`, where `g` is the share of the words that were found, and one more for
a page than for a section, and lists pages in the order of their best section.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import lunr.builder
import pytest
from lunr.builder import Builder
from lunr.query import Query
from lunr.stop_word_filter import WORDS, stop_word_filter
from lunr.token import Token

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
SEPARATOR = r"[\s\-]+"
SEARCHES = {
    "stop a run": "guides/stop-and-detach",
    "kill a run": "guides/stop-and-detach",
    "run on 2 gpus": "guides/write-a-job-file",
    "first run": "tutorial",
    "restart after crash": "guides/troubleshooting",
    "resume training": "guides/resume-a-run",
    "out of memory": "guides/troubleshooting",
    "compare runs": "guides/keep-track-of-runs",
    "where is my model": "guides/results-of-a-script",
    "notify when done": "guides/keep-track-of-runs",
    "see logs": "guides/read-logs",
    "async": "guides/use-from-python",
    "exit code": "reference/exit-codes",
    "uninstall": "guides/install",
    "slurm": "guides/coming-from-slurm",
    "python api": "reference/python-api",
    "hyperparameters": "guides/keep-track-of-runs",
    "hang": "guides/troubleshooting",
    "mount s3": "guides/data-of-a-run",
    "spot instances": "guides/make-a-cluster",
}


def tokens(text: Any, _metadata: object = None, _separator: object = None) -> list[Token]:
    """Words of HTML, as the theme takes them apart: tags end a word."""
    words = (word for part in re.split(r"<[^>]*>", str(text)) for word in re.split(SEPARATOR, part))
    return [Token(word.lower(), {}) for word in words if word]


class Site:
    """The search of a built site."""

    def __init__(self, index: Mapping[str, Any]) -> None:
        assert index["config"]["separator"] == SEPARATOR
        assert index["config"]["pipeline"] == ["stopWordFilter"]
        builder = Builder()
        builder.pipeline.add(stop_word_filter)
        builder.b(0)
        builder.ref("location")
        for name in ("title", "text"):
            builder.field(name, boost=index["config"]["fields"][name]["boost"])
        with mock.patch.object(lunr.builder, "Tokenizer", tokens):
            for one in index["docs"]:
                builder.add({name: one[name] for name in ("location", "title", "text")}, {"boost": one.get("boost", 1)})
        self._index = builder.build()
        self.locations = [one["location"] for one in index["docs"]]

    def pages(self, text: str) -> list[str]:
        """The pages that a search lists, the best first."""
        words = [word for word in re.split(SEPARATOR, text) if word]
        query = Query(["title", "text"])
        for word in words:
            query.term(word, wildcard=Query.WILDCARD_TRAILING)
        scored = sorted(self._scored(query, words), reverse=True)
        return list(dict.fromkeys(location.partition("#")[0].removesuffix(".html") for _, location in scored))

    def _scored(self, query: Query, words: list[str]) -> Iterator[tuple[float, str]]:
        for found in self._index.query(query=query):
            matched = [any(one.startswith(word) for one in found["match_data"].metadata) for word in words]
            counted = [hit for word, hit in zip(words, matched, strict=True) if hit or word not in WORDS]
            share = ("#" not in found["ref"]) + sum(counted) / len(counted)
            yield found["score"] * (1 + share**2), found["ref"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("site")
    program = Path(sys.executable).with_name("mkdocs")
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run([program, "build", "-q", "-d", folder], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Site(json.loads((folder / "search" / "search_index.json").read_text()))


def test_what_users_search_for_is_among_the_first_three_pages(site: Site) -> None:
    found = {text: site.pages(text)[:3] for text in SEARCHES}
    assert {text: pages for text, pages in found.items() if SEARCHES[text] not in pages} == {}


def test_pages_for_contributors_are_no_results(site: Site) -> None:
    assert [one for one in site.locations if one.startswith(("decisions/", "reference/tested-verdicts"))] == []
    assert "index.html" in site.locations
