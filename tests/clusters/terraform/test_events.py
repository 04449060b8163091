"""Recorded output of Terraform 1.11.4 is parsed into events."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from windlass.clusters.terraform.events import (
    Counted,
    Diagnostic,
    Event,
    ResourceDone,
    ResourceProgress,
    ResourceStarted,
    TerraformNote,
    parse_line,
)

RECORDED = Path(__file__).parent / "recorded"


def events(name: str) -> list[Event]:
    """Returns the events of a recording."""
    found = (parse_line(line) for line in (RECORDED / f"{name}.jsonl").read_text().splitlines())
    return [one for one in found if one is not None]


def test_apply_output_becomes_events() -> None:
    found = events("apply")
    started = {one.address for one in found if isinstance(one, ResourceStarted)}
    assert started == {one.address for one in found if isinstance(one, ResourceDone)}
    queue = "aws_sqs_queue.interruptions"
    assert [one for one in found if isinstance(one, ResourceProgress)] == [
        ResourceProgress(queue, "create", 10.0),
        ResourceProgress(queue, "create", 20.0),
    ]
    assert found[-1] == Counted("apply", 8, 0, 0)


def test_diagnostic_has_address_and_position() -> None:
    (first, *_) = [one for one in events("exists") if isinstance(one, Diagnostic) and one.is_error]
    assert first.address == "aws_iam_role.node"
    assert first.where == "main.tf:33"


def test_text_that_is_not_json_is_a_note() -> None:
    assert parse_line("panic: runtime error") == TerraformNote("panic: runtime error")
    assert parse_line("[1]") == TerraformNote("[1]")
    assert parse_line("  ") is None


def test_a_known_type_without_its_fields_is_a_note() -> None:
    assert parse_line('{"type": "apply_start", "@message": "half"}') == TerraformNote("half")


def test_unknown_message_type_is_ignored() -> None:
    assert parse_line('{"type": "test_plan"}') is None


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.dictionaries(
    st.sampled_from(["type", "hook", "change", "resource", "addr", "diagnostic", "changes", "@message", "range"]), inner
) | st.lists(inner), max_leaves=12))  # fmt: skip
def test_parser_accepts_any_output(value: object) -> None:
    import json

    for type in ("apply_start", "apply_complete", "diagnostic", "change_summary", "log"):
        parse_line(json.dumps({**value, "type": type} if isinstance(value, dict) else value))
