"""The reference pages are those that the code makes, and each option, field and method has an anchor in them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click

import windlass
from windlass.cli.main import cli
from windlass.spec.schema import cluster_schema, job_schema, targets_schema

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"


def test_reference_pages_are_as_the_code_says() -> None:
    command = [sys.executable, "tools/reference.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr


def anchors(name: str) -> list[str]:
    return re.findall(r'<a id="([^"]+)" href="#\1">', (REFERENCE / name).read_text())


def options(command: click.Command, context: click.Context, words: tuple[str, ...] = ()) -> Iterator[str]:
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            yield "-".join([*(words or ("windlass",)), max(parameter.opts, key=len)])
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from options(below, click.Context(below, info_name=name, parent=context), (*words, name))


def test_each_option_has_an_anchor() -> None:
    found = anchors("cli.md")
    assert {"run---restarts", "cluster-up---yes", "windlass---version"} <= set(found)
    assert sorted(found) == sorted(options(cli, click.Context(cli)))


def test_each_field_of_a_file_has_an_anchor() -> None:
    for name, schema, some in (
        ("job-file.md", job_schema(), {"job.restarts", "restarts.max", "kubernetesoptions.via"}),
        ("cluster-file.md", cluster_schema(), {"cluster.region"}),
        ("targets-file.md", targets_schema(), {"kubernetes.context", "local.kind"}),
    ):
        found = anchors(name)
        parts = [*schema["$defs"].values(), schema if name != "targets-file.md" else {}]  # that one names targets
        fields = {field for part in parts for field in part.get("properties", {})}
        assert fields == {anchor.partition(".")[2] for anchor in found}
        assert some <= set(found)
        assert len(found) == len(set(found))


def test_each_method_and_attribute_has_an_anchor() -> None:
    assert {f"Run.{name}" for name in vars(windlass.Run) if not name.startswith("_")} <= set(anchors("python-api.md"))
    assert {"Checkpoint.save", "BatchSampler.state_dict"} <= set(anchors("train-api.md"))
    for name in ("python-api.md", "train-api.md"):
        assert len(anchors(name)) == len(set(anchors(name)))
