"""`import` writes job files and reports unmapped fields."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import jsonschema
import pytest
from tests.cli.conftest import Call

from windlass.spec.parse import parse_job
from windlass.views.schema import schema_of

MANIFEST = """apiVersion: batch/v1
kind: Job
metadata: {name: digits}
spec:
  backoffLimit: 0
  template:
    spec:
      shareProcessNamespace: true
      hostname: digits
      restartPolicy: Never
      containers: [{name: main, image: example/a:1, command: [torchrun, --nproc-per-node, "2", train.py]}]
"""


@pytest.fixture
def manifest(home: Path) -> Path:
    path = Path("manifest.yaml")
    path.write_text(MANIFEST)
    return path


def test_import_writes_a_valid_job_file_and_reports_unmapped_fields_on_stderr(windlass: Call, manifest: Path) -> None:
    made = windlass("import", "manifest.yaml")
    assert made.code == 0, made.err
    text = Path("job.yaml").read_text()
    assert text.startswith("# Imported from manifest.yaml: Job batch/v1\n")
    assert all(line in made.out for line in text.splitlines())
    assert "2 fields without equivalent in a job file:" in made.err
    assert "manifest.yaml:8  spec.template.spec.shareProcessNamespace" in made.err
    ours = made.err.partition("Nothing to do")[2]
    assert "  spec.template.spec.hostname: the pod's name\n" in ours
    Path("train.py").write_text("")
    assert windlass("check").code == 0


def test_import_does_not_overwrite_unless_forced(windlass: Call, manifest: Path) -> None:
    Path("job.yaml").write_text("mine")
    refused = windlass("import", "manifest.yaml")
    assert (refused.code, refused.out) == (2, "")
    assert "job.yaml already exists" in refused.err
    assert Path("job.yaml").read_text() == "mine"
    assert windlass("import", "manifest.yaml", "--force", "--name", "other").code == 0
    assert "name: other" in Path("job.yaml").read_text()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_non_files_are_not_overwritten(windlass: Call, manifest: Path, kind: str) -> None:
    place = Path("there")
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "device":
        place.symlink_to("/dev/null")
    else:
        place.mkdir()
    before = place.lstat()
    refused = windlass("import", "manifest.yaml", "--to", "there", "--force")
    assert (refused.code, refused.out, "there is no file" in refused.err) == (2, "", True), refused.err
    assert (place.lstat().st_ino, place.lstat().st_mode) == (before.st_ino, before.st_mode)


def test_unwritable_job_file_is_named_in_the_error(windlass: Call, manifest: Path) -> None:
    name = "j" * 255  # the name of the temporary file is longer
    refused = windlass("import", "manifest.yaml", "--to", name)
    assert (refused.code, refused.out) == (2, "")
    assert f"{name} cannot be written: File name too long" in refused.err


def test_import_writes_to_the_given_path_or_only_to_stdout(windlass: Call, manifest: Path) -> None:
    assert windlass("import", "manifest.yaml", "--to", "other.yaml").code == 0
    assert Path("other.yaml").exists()
    shown = windlass("import", "manifest.yaml", "--to", "-")
    assert shown.out == Path("other.yaml").read_text()
    assert not Path("job.yaml").exists()


def test_import_reads_standard_input(windlass: Call, manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MANIFEST.encode())))
    made = windlass("import", "-", "--to", "-")
    assert made.code == 0, made.err
    assert parse_job(made.out).name == "digits"


def test_import_output_matches_its_schema(windlass: Call, manifest: Path) -> None:
    made = windlass("import", "manifest.yaml", "-o", "json").json
    jsonschema.Draft202012Validator(schema_of("import")).validate(made)
    assert (made["written"], made["kind"], made["job"]["procs_per_node"]) == (["job.yaml"], "Job batch/v1", 2)
    assert made["text"] == Path("job.yaml").read_text()
    [shared] = [one for one in made["unmapped"] if one["field"] == "spec.template.spec.shareProcessNamespace"]
    assert (shared["line"], shared["is_handled"]) == (8, False)
    assert windlass("import", "manifest.yaml", "--to", "-", "-o", "json").json["written"] == []


def test_other_formats_are_imported(windlass: Call) -> None:
    Path("task.yaml").write_text("name: a\nnum_nodes: 2\nrun: torchrun train.py\n")
    assert windlass("import", "--sky", "task.yaml").code == 0
    Path("app.json").write_text('{"name": "a", "roles": [{"image": "b", "entrypoint": "/bin/x", "args": ["y"]}]}')
    assert windlass("import", "--torchx", "app.json", "--to", "x.yaml").code == 0
    assert windlass("import", "--torchx", "--sky", "task.yaml").code == 2


@pytest.mark.parametrize("text", ["a: [", "kind: Job\n", "", "a: &a [*a]\n"])
def test_bad_input_is_one_message_and_nothing_is_written(text: str, windlass: Call) -> None:
    Path("bad.yaml").write_text(text)
    made = windlass("import", "bad.yaml")
    assert (made.code, made.out) == (2, "")
    assert made.err.count("error:") == 1
    assert "bad.yaml" in made.err
    assert "Traceback" not in made.err
    assert os.listdir() == ["bad.yaml"]  # noqa: PTH208 - names alone


def test_missing_file_is_reported(windlass: Call) -> None:
    made = windlass("import", "nowhere.yaml")
    assert (made.code, "cannot be read: No such file" in made.err) == (2, True)


@pytest.mark.parametrize("form", ["manifest", "manifest-json"])
def test_only_plans_for_clusters_are_written_as_manifests(form: str, windlass: Call) -> None:
    Path("train.py").write_text("")
    refused = windlass("plan", "train.py", "-o", form)
    assert (refused.code, refused.out) == (2, "")
    assert "plan -o manifest is not supported by engine local" in refused.err


def test_the_next_commands_name_the_job_file_that_was_written(windlass: Call, manifest: Path) -> None:
    assert "Next: windlass check --on TARGET, then windlass run --on TARGET" in windlass("import", "manifest.yaml").out
    Path("some jobs").mkdir()
    made = windlass("import", "manifest.yaml", "--to", "some jobs/other.yaml")
    assert "some jobs/other.yaml written" in made.out
    assert "Next: windlass check 'some jobs/other.yaml' --on TARGET" in made.out
    assert "then windlass run 'some jobs/other.yaml' --on TARGET" in made.out
    made = windlass("import", "manifest.yaml", "--to", "some jobs/data.yaml", "-o", "json")
    assert made.json["written"] == ["some jobs/data.yaml"]


def test_missing_destination_folder_is_an_error(windlass: Call, manifest: Path) -> None:
    refused = windlass("import", "manifest.yaml", "--to", "jobs/other.yaml")
    assert refused.code == 2
    assert f"mkdir -p {Path.cwd() / 'jobs'}" in refused.err


def test_messages_about_standard_input_name_it(windlass: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def given(text: str) -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return windlass("import", "-").err

    assert "  standard input:8  spec.template.spec.shareProcessNamespace" in given(MANIFEST)
    assert "windlass import --document Job/digits -, and" in given(f"{MANIFEST}---\n{MANIFEST}")
    assert "envsubst '${NAME}' | windlass import -" in given(MANIFEST.replace("digits", "${NAME}", 1))
