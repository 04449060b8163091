"""Each value of a manifest is in the job file or in a report that names it, or the import is refused.

`written/` contains typical manifests, each below a line `#== NAME`. The manifests of this folder and the small
equivalents of public files in `tests/foreign/jobfiles` are tested too.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.importers.shapes import FILES, fields
from tests.importers.test_shapes import leaves, spelled, with_another

from windlass.errors import JobFileError
from windlass.importers.convert import Format, Imported, import_text
from windlass.importers.documents import JOBS, split

FOLDER = Path(__file__).parent / "written"
FOREIGN = Path(__file__).parents[1] / "foreign" / "jobfiles"
SHAPES = {
    f"{path.stem}/{part.partition(chr(10))[0].strip()}": part.partition("\n")[2]
    for path in sorted(FOLDER.glob("*.yaml"))
    for part in re.split(r"^#== ", path.read_text(), flags=re.MULTILINE)[1:]
}
WALKED = SHAPES | {
    path.stem: path.read_text() for path in sorted((*FILES, *FOREIGN.glob("*.*"))) if "-refused-" not in path.stem
}
LARGE: Final = ("company-pytorchjob", "company-mpijob")
"""Manifests with many fields, of which each takes half a minute; company-trainjob has nearly the same."""
REFUSED = {
    name: message
    for message, names in {
        "argument of the image's own program": ["kubeflow/pytorchjob-arguments-of-the-image"],
        "tasks of their own": ["kubeflow/tfjob-parameter-servers"],
        "no line of mpirun": ["kubeflow/mpijob-script"],
        "is Intel": ["kubeflow/mpijob-intel"],
        "is not in this file: it may start the ranks": ["kubeflow/trainjob-unknown-runtime"],
        "not a whole number": ["batch/job-half-a-gpu"],
        "starts other ranks": ["batch/jobset-ranks-by-other-commands"],
        "found Pod": ["batch/pod"],
        "found RayJob": ["batch/rayjob"],
        "found LeaderWorkerSet": ["batch/leaderworkerset"],
        "is 'batch.volcano.sh/v1alpha1'": ["batch/volcano"],
        "is a placeholder of": ["batch/helm", "batch/envsubst"],
        "pool of workers": ["sky/pool"],
        "service of SkyServe": ["sky/service"],
        "calls mpirun": ["sky/hosts"],
        "has no run:": ["sky/no-run"],
        "starts nothing": ["torchx/nothing"],
        "another group of instances": ["sagemaker/two-groups"],
        "the image's own program, which the request": ["sagemaker/own-program"],
    }.items()
    for name in names
}
NAMES: Final = re.compile(
    r"apiVersion|kind|metadata\.name|spec\.runtimeRef\.apiGroup"  # how a document is identified
    # how one value refers to another
    r"|.*(?:containers|volumes|volumeMounts|replicatedJobs|roles|targetJobs)\[\d+\]\.name"
    r"|.*InstanceGroupName"
)
"""Values that only name or refer to other values."""


def form_of(name: str) -> Format:
    forms: dict[str, Format] = {"sky": "sky", "torchx": "torchx"}
    return forms.get(re.split(r"[/-]", name)[0], "kubernetes")


def imported(name: str, documents: list[Any]) -> Imported:
    return import_text("\n---\n".join(map(json.dumps, documents)), "file.yaml", form=form_of(name))


def fate(name: str, documents: list[Any], at: int, leaf: tuple[str | int, ...], made: Imported) -> str:
    """Returns where a value is: `job`, `note`, `default` for a default of the job, or empty if it is missing."""
    label = "" if is_job(name, documents[at]) else f"{documents[at]['kind']}/{documents[at]['metadata']['name']}: "
    above = {f"{label}{spelled(leaf[:end])}" for end in range(1, len(leaf) + 1)} | {label.rstrip(": ")} - {""}
    value = documents[at]
    for step in leaf:
        value = value[step]
    named = re.compile(rf"(?<!\w){re.escape(value)}(?!\w)" if isinstance(value, str) and value else "(?!)")
    if above & {one.field for one in made.unmapped} or any(named.search(one.meaning) for one in made.unmapped):
        return "note"
    if len(str(value)) > 2 and named.search(re.sub(r"^#.*\n", "", made.text) + made.target):
        return "job"
    outcomes = [outcome(name, documents, at, leaf, made, f"{label}{spelled(leaf[:-1])}", above)]
    if type(value) is int and value > 0:  # a minimum above its maximum is invalid
        outcomes.append(outcome(name, documents, at, leaf, made, f"{label}{spelled(leaf[:-1])}", above, value - 1))
    return max(outcomes)


def outcome(
    name: str,
    documents: list[Any],
    at: int,
    leaf: tuple[str | int, ...],
    made: Imported,
    beside: str,
    above: set[str],
    other_value: int | None = None,
) -> str:
    """Returns what another value changes: the `job`, or the notes, as for a default of the job; empty if nothing."""
    changed = copy.deepcopy(documents)
    changed[at] = with_another(changed[at], leaf, other_value)
    try:
        other = imported(name, changed)
    except JobFileError:
        return "job"  # the field is read, and the other value is invalid
    if (fields(other), other.target) != (fields(made), made.target):
        return "job"
    new = {one.field for one in {*other.unmapped} - {*made.unmapped}}
    return "default" if above & new or any(field.startswith(beside) for field in new) else ""


def is_job(name: str, document: Any) -> bool:
    return "kind" not in document or document["kind"] in JOBS


def options(value: Any) -> Iterator[str]:
    """Yields the options in the words of commands and scripts."""
    if isinstance(value, dict | list):
        for below in value.values() if isinstance(value, dict) else value:
            yield from options(below)
    elif isinstance(value, str):
        yield from re.findall(r"(?<![^\s\"'])(--?[A-Za-z][\w-]*)", value)


FIELDS: Final = re.compile(
    r"--(nnodes|nproc[-_]per[-_]node|max[-_]restarts|num_(?:machines|processes)|mixed_precision|standalone|module|no-python)"
    r"|-(np?|x|mca|u|m|e|[a-z]*c|De|f|H|y|p|lc)|--allow-run-as-root|--tail|--port"
)
"""Options whose values become fields of the job, and options of containers that are reported as a whole."""


def test_more_than_sixty_shapes_cover_each_supported_kind() -> None:
    assert len(WALKED) - len(REFUSED) >= 60
    assert REFUSED.keys() <= SHAPES.keys()
    assert {re.split(r"[/-]", name)[0] for name in SHAPES} == {"batch", "kubeflow", "sagemaker", "sky", "torchx"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.nightly if name in LARGE else ()) for name in WALKED if name not in REFUSED],
)
def test_each_value_is_in_the_job_or_in_a_note(name: str) -> None:
    documents = [source.value for source in split(WALKED[name], "file.yaml")]
    made = imported(name, documents)
    lost = [
        spelled(leaf)
        for at, document in enumerate(documents)
        for leaf in leaves(document)
        if not NAMES.fullmatch(spelled(leaf)) and not fate(name, documents, at, leaf, made)
    ]
    assert lost == []


@pytest.mark.parametrize("name", [name for name in WALKED if name not in REFUSED])
def test_each_option_of_a_command_becomes_a_field_an_argument_or_a_note(name: str) -> None:
    documents = [source.value for source in split(WALKED[name], "file.yaml")]
    made = imported(name, documents)
    said = "\n".join([made.text, *(one.meaning for one in made.unmapped)])
    assert [one for one in options(documents) if not FIELDS.fullmatch(one) and one not in said] == []


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_documents_are_refused_with_a_fix(name: str) -> None:
    with pytest.raises(JobFileError) as refused:
        import_text(SHAPES[name], "file.yaml", form=form_of(name))
    assert any(REFUSED[name] in problem.message for problem in refused.value.problems), str(refused.value)
