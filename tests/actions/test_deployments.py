"""Names, content types and classes of deployments are read as users write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from windlass.actions.deployments import (
    _valid_name,
    class_names,
    content_type_of,
    invoke,
    labels_of,
    planned,
)
from windlass.engines.deployments import DeploymentRequest
from windlass.errors import UsageError
from windlass.runs.context import Context

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
