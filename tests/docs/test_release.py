"""Version, changelog and classifiers agree, and `make clean` names what it leaves."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import windlass

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()


def test_the_version_is_the_same_in_package_project_and_changelog() -> None:
    released = re.findall(r"^## \[(\d[^\]]*)\] - \d{4}-\d{2}-\d{2}$", CHANGELOG, re.MULTILINE)
    assert windlass.__version__ == PROJECT["version"] == released[0]


def test_the_changelog_has_a_section_for_what_comes_next() -> None:
    assert re.findall(r"^## (\S+)", CHANGELOG, re.MULTILINE)[0] == "[Unreleased]"


def test_the_classifiers_name_the_pythons_that_the_wheel_is_tested_on() -> None:
    versions = tuple(re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"])))
    tested = re.search(r"^VERSIONS = \((.*)\)$", (ROOT / "tools/wheel.py").read_text(), re.MULTILINE)
    assert tested
    assert versions == tuple(re.findall(r"[\d.]+", tested[1]))
    assert PROJECT["requires-python"] == f">={versions[0]}"


def test_no_page_or_hint_says_to_install_the_package_of_another_project() -> None:
    """An index has another project under the name of the command: only a path may be asked for."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob("src/**/*.py")]
    asked = [
        f"{page.relative_to(ROOT)}: {found}"
        for page in pages
        if page.name != "CHANGELOG.md"
        for found in re.findall(r"pip install [^\n`]*['\" ]windlass(?![\w-])[^\n`]*", page.read_text())
    ]
    assert asked == []


def test_the_distribution_has_a_name_of_its_own_and_no_placeholder_as_an_address() -> None:
    assert PROJECT["name"] == "windlass-train"
    assert list(PROJECT["scripts"]) == ["windlass"]
    assert "urls" not in PROJECT  # until there is an address
    assert f"pip uninstall {PROJECT['name']}\n" in (ROOT / "docs/guides/install.md").read_text()


def test_make_clean_removes_what_was_made_and_names_what_stays(tmp_path: Path) -> None:
    checkout, home = tmp_path / "windlass", tmp_path / "home"
    for folder in (checkout / "tools", checkout / ".venv/bin", home / ".local/share/windlass", home / ".cache/uv"):
        folder.mkdir(parents=True)
    (checkout / "tools/clean.sh").write_text((ROOT / "tools/clean.sh").read_text())
    env = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", str(checkout / "tools/clean.sh")], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert not (checkout / ".venv").exists()
    assert (home / ".local/share/windlass").is_dir()
    assert f"{home}/.local/share/windlass" in done.stdout
    assert f"{home}/.cache/uv" in done.stdout
    assert "windlass-testbed" not in done.stdout
