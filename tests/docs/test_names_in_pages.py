"""Options and fields that a page names outside of a command exist: here, or in the tools that the pages speak of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
from tests.docs.test_pages import PAGES, name_of, prose

from windlass.cli.main import cli
from windlass.spec import targets
from windlass.spec.schema import cluster_schema, job_schema

WRITTEN = [
    page for page in PAGES if page.name not in {"CHANGELOG.md", "python-api.md"} and page.parent.name != "decisions"
]

# Options of torchrun and other launchers, of kubectl and pip, of scripts and benchmarks in examples.
FOREIGN_OPTIONS = frozenset({
    "--ready-file",  # of python -m windlass.serving
    "--backend", "--checkpoint-format", "--ckpt-path", "--config_file", "--cpu", "--delete-emptydir-data",
    "--devices", "--epochs", "--gpu", "--gradient_accumulation_steps", "--hostfile", "--init_from", "--kills",
    "--backbone-sha256", "--local-rank", "--lr", "--mirror", "--url",
    "--local-ranks-filter", "--local_rank", "--log-dir", "--master-addr", "--master-port", "--max-restarts",
    "--max_retries", "--mca", "--mixed_precision", "--mounts", "--nnodes", "--node-rank", "--nproc-per-node",
    "--no_local_rank", "--num_cpu_threads_per_process", "--num_gpus", "--num_nodes", "--num_processes", "--output_dir",
    "--overwrite_output_dir", "--parts", "--rdzv-", "--rdzv-backend", "--rdzv-endpoint", "--redirects", "--resume",
    "--resume_from_checkpoint", "--role", "--save_steps", "--save_total_limit", "--shutdown-timeout", "--size",
    "--standalone", "--tee", "--upgrade", "--use-env",
})  # fmt: skip
# Fields of SkyPilot's tasks, and words before a colon that are no fields.
FOREIGN_FIELDS = frozenset({
    "accelerators", "envs", "file_mounts", "image_id", "infra", "max_restarts_on_errors", "node", "num_nodes",
    "service", "setup", "team", "warning", "workdir",
})  # fmt: skip


def options_of(command: click.Command, context: click.Context) -> Iterator[str]:
    """Every option of a command and of those below it."""
    for parameter in command.get_params(context):
        yield from (*parameter.opts, *parameter.secondary_opts)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from options_of(below, click.Context(below, info_name=name, parent=context))


def fields_of(schema: Any) -> Iterator[str]:
    """Every name of a field in a JSON Schema."""
    if isinstance(schema, Mapping):
        yield from schema.get("properties", {})
        for value in schema.values():
            yield from fields_of(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from fields_of(value)


OPTIONS = frozenset(options_of(cli, click.Context(cli, info_name="windlass", **cli.context_settings))) | FOREIGN_OPTIONS
TARGETS = [
    kind.model_json_schema()
    for kind in (targets.LocalTarget, targets.KubernetesTarget, targets.SageMakerTarget, targets.SageMakerLocalTarget)
]
FIELDS = frozenset(fields_of([job_schema(), cluster_schema(), *TARGETS])) | FOREIGN_FIELDS


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_options_named_in_pages_exist(page: Path) -> None:
    assert sorted(set(re.findall(r"`(--[a-z][a-z0-9_-]*)[^`\n]*`", prose(page))) - OPTIONS) == []


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_fields_named_in_pages_exist(page: Path) -> None:
    assert sorted(set(re.findall(r"`(?:[^`\n]*\{)?([a-z_]+):(?: [^`\n]*)?`", prose(page))) - FIELDS) == []


def test_a_name_that_does_not_exist_would_be_noticed() -> None:
    assert "--no-such" not in OPTIONS
    assert "--on" in OPTIONS
    assert "no_such" not in FIELDS
    assert {"supervisor_image", "procs_per_node", "network_policy"} <= FIELDS
