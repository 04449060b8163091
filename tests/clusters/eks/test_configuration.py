"""The Terraform configuration is formatted, valid, documented, and passes its own tests and checkov."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from tests.clusters.eks.configuration import RESOURCE, SOURCE, VARIABLE, Terraform, copied_to, names, text
from tests.fakeaws.emulator import ROOT, make_environments
from tests.fakeaws.emulator.fixtures import terraform  # noqa: F401
from tests.helpers.once import once

CHECKOV = ROOT / ".cache" / "checkov-env" / "bin" / "checkov"


@pytest.fixture(scope="session")
def initialised(tmp_path_factory: pytest.TempPathFactory, terraform: dict[str, str]) -> Terraform:  # noqa: F811
    """Returns a copy with the provider installed, shared by all tests."""

    def make() -> str:
        folder = copied_to(tmp_path_factory.mktemp("configuration"))
        Terraform(folder, terraform).run("init", "-backend=false", "-no-color")
        return str(folder)

    return Terraform(Path(once(tmp_path_factory, "terraform-init", make)), terraform)


def test_the_files_are_formatted(terraform: dict[str, str]) -> None:  # noqa: F811
    assert Terraform(SOURCE, terraform).run("fmt", "-check", "-recursive", "-diff") == ""


@pytest.mark.slow
def test_the_configuration_is_valid(initialised: Terraform) -> None:
    report = json.loads(initialised.run("validate", "-json"))
    assert report["valid"]
    assert report["diagnostics"] == []


@pytest.mark.slow
def test_terraform_tests_pass(initialised: Terraform) -> None:
    shown = initialised.run("test", "-no-color")
    assert re.search(r"Success! [1-9]\d* passed, 0 failed\.", shown), shown


@pytest.mark.slow
def test_checkov_finds_nothing() -> None:
    make_environments()
    command = [str(CHECKOV), "-d", str(SOURCE), "--framework", "terraform", "--skip-download", "--quiet", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    failed = [f"{found['check_id']} {found['resource']}" for found in report["results"].get("failed_checks", [])]
    assert failed == []
    assert report["summary"]["passed"] > 250
    assert report["summary"]["parsing_errors"] == 0


def test_each_checkov_skip_has_a_reason() -> None:
    waivers = re.findall(r"#checkov:skip=(\w+)(.*)", text())
    assert waivers
    assert [check for check, reason in waivers if len(reason) < 30] == []


def test_each_variable_is_described_with_its_default_and_cost() -> None:
    variables = dict(VARIABLE.findall(text()))
    assert len(variables) >= 28
    readme = (SOURCE / "README.md").read_text()
    for name, body in variables.items():
        described = re.search(r'^  description = "(.*)"$', body, re.MULTILINE)
        assert described, f"{name} has no description"
        assert re.search(r"\b[Dd]efault\b", described[1]), f"{name} does not name its default"
        assert re.search(r"USD|[Ff]ree|cost|[Pp]rice|cents", described[1]), f"{name} does not say what it costs"
        assert re.search(r"^  type +=", body, re.MULTILINE), f"{name} has no type"
        assert f"| `{name}` |" in readme, f"README.md does not list {name}"
    listed = re.findall(r"^\| `(\w+)` \| ", readme.partition("## Variables")[2].partition("\n## ")[0], re.MULTILINE)
    assert listed == list(variables)


def test_the_readme_names_each_file() -> None:
    readme = (SOURCE / "README.md").read_text()
    needless = {"variables.tf", "outputs.tf", "provider.tf"}
    assert [path.name for path in SOURCE.glob("*.tf") if path.name not in needless and path.name not in readme] == []


def test_each_name_is_used_by_the_resource_of_its_address() -> None:
    bodies = {f"{kind}.{name}": body for kind, name, body in RESOURCE.findall(text())}
    for address, pattern in names().items():
        assert address in bodies, f"{address} has a name and no resource"
        assert f'local.names["{address}"]' in bodies[address], f"{address} does not use its name"
        assert ("{key}" in pattern) == bool(re.search(r"\breplace\(local\.names\[", bodies[address])), address


def test_for_each_keys_do_not_depend_on_resources() -> None:
    """Otherwise `terraform import` into an empty state fails, for example for a kept bucket."""
    found = [
        f"{path.name}: {line.strip()}"
        for path in SOURCE.glob("*.tf")
        for line in path.read_text().splitlines()
        if re.match(r"\s*(for_each|count)\s*=.*\b(aws_\w+|aws_cloudcontrolapi_resource)\.", line)
    ]
    assert not found


def test_each_role_has_exclusive_policies() -> None:
    roles = {name for kind, name, _body in RESOURCE.findall(text()) if kind == "aws_iam_role"}
    exclusive = (SOURCE / "exclusive.tf").read_text()
    assert roles == set(re.findall(r"^    (\w+) += \{", exclusive, re.MULTILINE))


def test_each_role_and_instance_profile_has_the_path_and_the_boundary() -> None:
    made = [
        (kind, name, body)
        for kind, name, body in RESOURCE.findall(text())
        if kind in ("aws_iam_role", "aws_iam_policy", "aws_iam_instance_profile")
    ]
    assert [name for _kind, name, body in made if not re.search(r"\n  path += var\.iam\.path\n", body)] == []
    roles = [(name, body) for kind, name, body in made if kind == "aws_iam_role"]
    assert [name for name, body in roles if "= var.iam.permissions_boundary\n" not in body] == []


def test_configuration_creates_no_credentials_and_no_users() -> None:
    kinds = {kind for kind, _name, _body in RESOURCE.findall(text())}
    assert kinds.isdisjoint({"aws_iam_user", "aws_iam_access_key", "aws_key_pair", "aws_iam_user_policy"})
    assert not re.search(r"(access|secret)_key\s*=", text())
