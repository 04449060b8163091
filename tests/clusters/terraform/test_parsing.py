"""Plans of `terraform show`, states, text output and logs are parsed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from windlass.clusters.terraform.changes import Action, summary_of
from windlass.clusters.terraform.errors import TerraformError
from windlass.clusters.terraform.events import text_diagnostics
from windlass.clusters.terraform.logs import KEPT, logs_in, new_log, redact, secrets_of
from windlass.clusters.terraform.state import state_resources


def change(address: str, actions: list[str], **rest: Any) -> dict[str, Any]:
    """Returns a resource change as in a JSON plan."""
    type, _, name = address.partition(".")
    found = {"before": None, "after": None, "after_unknown": {}, **rest}
    reason = found.pop("reason", None)
    about = {"address": address, "mode": "managed", "type": type, "name": name, "action_reason": reason}
    return {**about, "change": {"actions": actions, **found}}


def test_a_plan_counts_as_terraform_does() -> None:
    found = summary_of(
        {
            "resource_changes": [
                change("aws_vpc.a", ["create"], after={"cidr_block": "10.0.0.0/16"}, after_unknown={"id": True}),
                change("aws_eip.b", ["update"], before={"tags": {}}, after={"tags": {"a": "b"}}),
                change("aws_kms_key.c", ["delete", "create"], reason="replace_because_tainted"),
                change("aws_eip.d", ["delete"], before={"id": "e-1"}),
                change("aws_s3_bucket.e", ["no-op"], importing={"id": "bucket"}),
                change("aws_s3_bucket.f", ["no-op"]),
                {"address": "data.aws_region.x", "mode": "data", "type": "aws_region", "name": "x"},
            ],
            "output_changes": {"a": {"actions": ["create"]}, "b": {"actions": ["no-op"]}},
        }
    )
    assert (found.add, found.change, found.destroy, found.replace, found.imports) == (2, 1, 2, 1, 1)
    assert found.text == "2 to add, 1 to change, 2 to destroy, 1 to import (1 of them replaced)"
    assert [one.action for one in found.changes] == [
        Action.CREATE,
        Action.UPDATE,
        Action.REPLACE,
        Action.DELETE,
        Action.IMPORT,
    ]
    assert found.changes[0].changed == ("cidr_block", "id")
    assert found.changes[2].reason == "replace_because_tainted"
    assert found.output_changes == ("a",)


def test_values_are_not_in_the_text_of_a_change() -> None:
    plan = {"resource_changes": [change("aws_db.a", ["update"], before={"key": "hunter1"}, after={"key": "hunter2"})]}
    assert "hunter" not in repr(summary_of(plan))


def test_drift_contains_the_changes_that_an_apply_reverts() -> None:
    found = summary_of(
        {
            "resource_changes": [change("aws_eip.gone", ["create"]), change("aws_eip.other", ["no-op"])],
            "resource_drift": [
                change("aws_eip.gone", ["delete"], before={"id": "e-1"}),
                change("aws_eip.other", ["update"], before={"domain": "a"}, after={"domain": "b"}),
                change("aws_eip.empty", ["update"], before={"tags": None}, after={"tags": {}}),
            ],
        }
    )
    assert [one.address for one in found.drift] == ["aws_eip.gone", "aws_eip.other"]
    assert [one.address for one in found.drift_to_undo] == ["aws_eip.gone"]


def test_a_state_has_addresses_with_modules_and_keys() -> None:
    instances = [{"index_key": "a", "attributes": {"id": "1"}}, {"index_key": 0, "attributes": {}, "status": "tainted"}]
    deposed = {"attributes": {"id": "9"}, "deposed": "abc"}
    text = json.dumps(
        {
            "version": 4,
            "resources": [
                {"mode": "managed", "type": "aws_eip", "name": "b", "module": "module.m", "instances": instances},
                {
                    "mode": "data",
                    "type": "aws_region",
                    "name": "c",
                    "instances": [{"attributes": {"id": "r"}}, deposed],
                },
            ],
        }
    )
    found = state_resources(text)
    assert [one.address for one in found] == ['module.m.aws_eip.b["a"]', "module.m.aws_eip.b[0]", "data.aws_region.c"]
    assert [one.is_tainted for one in found] == [False, True, False]
    assert "id" not in repr(found[0].values if False else found[0]).replace("id='1'", "")


def test_a_state_that_was_never_written_is_empty() -> None:
    assert state_resources("") == []


@pytest.mark.parametrize("text", ['{"version": 3}', "nonsense", "[]", '{"version": 4, "resources": [1]}'])
def test_invalid_state_is_an_error(text: str) -> None:
    with pytest.raises(TerraformError):
        state_resources(text)


def test_errors_in_text_output_are_diagnostics() -> None:
    text = (
        "aws_vpc.a: Importing...\n╷\n│ Error: Resource already managed by Terraform\n│ \n│   with aws_vpc.a,\n"
        '│   on main.tf line 7, in resource "aws_vpc" "a":\n│ Remove it first.\n╵\n\nError: Second\n\nDetail.\n'
    )
    first, second = text_diagnostics(text)
    assert (first.summary, first.address, first.where) == (
        "Resource already managed by Terraform",
        "aws_vpc.a",
        "main.tf:7",
    )
    assert (second.summary, second.detail) == ("Second", "Detail.")
    assert text_diagnostics("Terraform state has been successfully unlocked!\n") == []


def test_logs_are_bounded(tmp_path: Path) -> None:
    for _ in range(KEPT + 5):
        new_log(tmp_path, "plan").write_text("x")
    assert len(logs_in(tmp_path)) == KEPT


def test_secrets_of_the_environment_are_not_kept_in_logs(tmp_path: Path) -> None:
    environ = {
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI",
        "AWS_SESSION_TOKEN": "short",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/t",
    }
    log = tmp_path / "a.log"
    log.write_text("sent wJalrXUtnFEMI from /var/run/t, short")
    redact(log, secrets_of(environ))
    assert log.read_text() == "sent (secret) from /var/run/t, short"
