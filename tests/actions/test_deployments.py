"""Names, content types and classes of deployments are read as users write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from windlass.actions.deployments import (
    _valid_name,
    class_names,
    content_type_of,
    deploy,
    invoke,
    labels_of,
    planned,
)
from windlass.engines.deployments import (
    Deployment,
    DeploymentPhase,
    DeploymentPlan,
    DeploymentRequest,
    Deployments,
    OnProgress,
)
from windlass.errors import UsageError
from windlass.runs.context import Context
from windlass.services.known import KnownDeployment, read_known, remember

LABELS = ("zero", "one", "two")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ([[0.1, 0.8, 0.1], [0.7, 0.2, 0.1]], ("one", "zero")),
        ([0.1, 0.2, 0.7], ("two",)),
        ({"predictions": [[0.0, 0.0, 1.0]]}, ("two",)),
        ([2, 0], ("two", "zero")),
        ([0, 1, 2], ("zero", "one", "two")),
        (1, ("one",)),
        ([[1, 0.0, 0.0]], ("zero",)),
        ([3], ()),
        ([-1], ()),
        ([True], ()),
        ([[0.1, 0.9]], ()),
        ({"error": "no"}, ()),
        ("one", ()),
        (None, ()),
        ([[0.1, 0.8, "x"]], ()),
    ],
)
def test_classes_are_named_where_the_answer_has_any(answer: Any, expected: tuple[str, ...]) -> None:
    assert class_names(answer, LABELS) == expected


def test_answer_of_a_model_without_labels_has_no_names() -> None:
    assert class_names([1], ()) == ()


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("a.json", "application/json"),
        ("a.NPY", "application/x-npy"),
        ("a.csv", "text/csv"),
        ("a.png", "application/x-image"),
        ("photo.jpeg", "application/x-image"),
    ],
)
def test_content_type_follows_the_name_of_the_file(file: str, expected: str) -> None:
    assert content_type_of(file) == expected


def test_file_of_an_unknown_type_is_refused_with_the_option_that_names_it() -> None:
    with pytest.raises(UsageError, match=r"the content type of a\.bin is unknown"):
        content_type_of("a.bin")


@pytest.mark.parametrize(
    ("name", "expected"), [("Digits_CNN", "digits-cnn"), ("digits-", "digits"), ("a.b", "a-b"), ("Ünï", "n")]
)
def test_names_are_made_fit_for_every_target(name: str, expected: str) -> None:
    assert _valid_name(name) == expected


@pytest.mark.parametrize("name", ["", "7", "x" * 41, "-"])
def test_name_that_no_target_could_use_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is no name for a deployment"):
        _valid_name(name)


@pytest.mark.parametrize("text", ['["zero", "one"]', '{"0": "zero", "1": "one"}'])
def test_labels_are_a_list_or_an_object_by_index(text: str, tmp_path: Path) -> None:
    (tmp_path / "labels.json").write_text(text)
    assert labels_of(tmp_path / "labels.json") == ("zero", "one")


@pytest.mark.parametrize("text", ["{", "7", '{"cat": 0}', '"cat"', "[1, 2]", "[" * 100_000])
def test_labels_of_another_form_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "labels.json").write_text(text)
    with pytest.raises(UsageError, match="has no names of classes"):
        labels_of(tmp_path / "labels.json")


@pytest.mark.parametrize("value", ["text/csv\r\nhost: other", "tëxt/csv", ""])
@pytest.mark.parametrize("option", ["--accept", "--content-type"])
def test_request_header_that_http_cannot_express_is_refused(option: str, value: str, tmp_path: Path) -> None:
    context = Context({"WINDLASS_HOME": str(tmp_path)}, tmp_path)
    types = {"--content-type": "text/csv", "--accept": "text/csv", option: value}
    with pytest.raises(UsageError, match=f"{option} .* is not a media type"):
        invoke("digits", b"1", types["--content-type"], "local", context, accept=types["--accept"], timeout=1.0)


def test_model_without_a_name_is_not_the_working_folder(tmp_path: Path) -> None:
    context = Context({"WINDLASS_HOME": str(tmp_path)}, tmp_path)
    with (
        pytest.raises(UsageError, match="name of the model is empty"),
        planned("", "local", DeploymentRequest("", Path(), None, "ann"), context),
    ):
        pass


def test_name_that_would_be_changed_is_refused_with_the_one_to_use(tmp_path: Path) -> None:
    """Otherwise no command would find the deployment by the name that the user gave it."""
    context = Context({"WINDLASS_HOME": str(tmp_path)}, tmp_path)
    (tmp_path / "model").mkdir()
    with (
        pytest.raises(UsageError, match="'My_Model' is no name for a deployment") as refused,
        planned("model", "local", DeploymentRequest("My_Model", Path(), None, "ann"), context),
    ):
        pass
    assert refused.value.hint == "--name my-model"


class Refusing(Deployments):
    """Deployments of a target that refuses each request, because another model is up."""

    def deploy(
        self, plan: DeploymentPlan, on_progress: OnProgress, credentials: Mapping[str, bytes] | None = None
    ) -> Deployment:
        raise UsageError(f"{plan.request.name} is up with another model")


class Continuing(Deployments):
    """Deployments of a target that has the requested one already, with an end in 900 s."""

    def deploy(
        self, plan: DeploymentPlan, on_progress: OnProgress, credentials: Mapping[str, bytes] | None = None
    ) -> Deployment:
        return Deployment(plan.request.name, plan.target, DeploymentPhase.READY, ends_at=900.0)


def requested(deployments: Deployments, known: KnownDeployment, home: Path) -> None:
    plan = DeploymentPlan(DeploymentRequest(known.name, Path(), known.ends_at, "ann"), known.target, ())
    deploy(deployments, plan, known, Context({"WINDLASS_HOME": str(home)}, home), lambda _line: None)


def test_refused_request_does_not_change_what_is_known_of_the_deployment_that_is_up(tmp_path: Path) -> None:
    pets = KnownDeployment("pets", "local", 100.0, 900.0, "v1-7f3k2", ("cat", "dog"), "this machine")
    remember(tmp_path, pets)
    with pytest.raises(UsageError, match="is up with another model"):
        requested(Refusing(), replace(pets, run_id="v2-9xw4m", labels=("ant", "bee"), ends_at=999.0), tmp_path)
    assert read_known(tmp_path, "local", "pets") == pets


def test_refused_request_of_a_new_deployment_is_forgotten(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is up with another model"):
        requested(Refusing(), KnownDeployment("pets", "local", 100.0, 900.0), tmp_path)
    assert read_known(tmp_path, "local", "pets") is None


def test_repeated_request_keeps_the_end_that_the_target_reports(tmp_path: Path) -> None:
    pets = KnownDeployment("pets", "local", 100.0, 1900.0)
    requested(Continuing(), pets, tmp_path)
    assert read_known(tmp_path, "local", "pets") == replace(pets, ends_at=900.0)


def test_name_that_was_deployed_elsewhere_under_this_target_is_refused(tmp_path: Path) -> None:
    pets = KnownDeployment("pets", "lab", 100.0, None, place="https://one team")
    remember(tmp_path, pets)
    with pytest.raises(UsageError, match="pets was deployed to https://one team, and lab is now https://two team"):
        requested(Continuing(), replace(pets, place="https://two team"), tmp_path)
    assert read_known(tmp_path, "lab", "pets") == pets
