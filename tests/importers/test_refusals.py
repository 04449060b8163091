"""What cannot be imported is refused in one message that names the place, however bad the file is."""

from __future__ import annotations

import time

import pytest
from tests.importers.shapes import FOLDER

from windlass.errors import JobFileError
from windlass.importers.convert import Format, import_text

JOB = """apiVersion: batch/v1
kind: Job
metadata: {name: a}
spec: {backoffLimit: 0, template: {spec: {restartPolicy: Never, containers: [{image: b, command: [/bin/true]}]}}}
"""
BOMB = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + at)}: &{chr(98 + at)} [*{chr(97 + at)}, *{chr(97 + at)}]\n" for at in range(20)
)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "it is empty", "known kinds are PyTorchJob"),
        ("just words\n", "no document has a kind", "known kinds"),
        ("a: [", "not YAML", ""),
        ("a: 1\na: 2\n", "given twice", "leave one out"),
        (BOMB, "is an alias", "write the value out"),
        ("a: !!python/object/apply:os.system [ls]\n", "is a tag", "without it"),
        (JOB.replace("Job", "PaddleJob"), "found PaddleJob", "under its operator"),
        (
            JOB + "---\n" + JOB.replace("name: a", "name: other", 1),
            "several jobs: Job/a (line 1), Job/other (line 6)",
            "windlass import --document Job/a",
        ),
        (JOB.replace("batch/v1", "batch/v2alpha1"), "is 'batch/v2alpha1', and Job is read in version batch/v1", ""),
        (JOB.replace("command: [/bin/true]", ""), "neither command nor args", "write what the image starts"),
        ("name: a\nrun: echo\n", "is no Kubernetes object", "--sky"),
        ("name: a\nroles: []\n", "is no Kubernetes object", "--torchx"),
        ("spec:\n  replicas: {{ .Values.n }}\n", "{{ .Values.n }} is a placeholder of Helm", "helm template"),
        ("a: " + "[" * 60 + "]" * 60, "deep inside each other", ""),
        ("x" * (1 << 20) + "yz", "characters", "is this the right file?"),
        (JOB + "\x07", "U+0007", ""),
    ],
)
def test_what_is_no_manifest_of_one_job_is_refused(text: str, message: str, hint: str) -> None:
    begun = time.process_time()
    with pytest.raises(JobFileError) as refused:
        import_text(text, "file.yaml")
    assert time.process_time() - begun < 20
    said = [(problem.message, problem.hint) for problem in refused.value.problems]
    assert any(message in one and hint in other for one, other in said), said
    assert all(problem.where.startswith("file.yaml") for problem in refused.value.problems)


@pytest.mark.parametrize(
    ("form", "text", "message"),
    [
        ("sky", "name: a\n", "has no run:"),
        ("sky", "- 1\n", "holds no mapping"),
        ("sky", "name: a\nrun: x\n---\nname: b\nrun: y\n", "holds 2 documents"),
        ("torchx", "name: a\n", "there are no roles"),
        ("torchx", "roles: [{name: a, image: b}]\n", "starts nothing"),
    ],
)
def test_what_is_no_task_or_appdef_is_refused(form: Format, text: str, message: str) -> None:
    with pytest.raises(JobFileError, match=message):
        import_text(text, "file.yaml", form=form)


def test_a_pipeline_of_one_task_may_name_itself_first() -> None:
    made = import_text("name: whole\n---\nname: part\nrun: python train.py\n", "task.yaml", form="sky")
    assert (made.job.name, made.job.run) == ("part", "train.py")


def test_a_name_that_is_given_goes_before_the_manifests() -> None:
    assert import_text(JOB, "file.yaml", name="mine").job.name == "mine"
    with pytest.raises(JobFileError, match="not a legal name"):
        import_text(JOB, "file.yaml", name="Not Mine")


def test_the_list_of_kubectl_is_as_good_as_the_object_alone() -> None:
    [path] = FOLDER.glob("h16*")
    assert import_text(path.read_text(), "list.yaml").job.name == "seen"
