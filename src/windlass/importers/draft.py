"""A job file that is being built: a field is set only if the job parser accepts it, else it is reported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from windlass.errors import JobFileError
from windlass.importers.field_hints import secret_hint, secret_name
from windlass.importers.secret_words import is_blank
from windlass.importers.source import View
from windlass.spec.names import legal_name, looks_secret
from windlass.spec.parse import job_from_mapping


class Draft:
    """The fields of a job, as a job file has them."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.target: dict[str, Any] = {}
        """Fields of the target on which the original runs, where it says them."""
        self.secret: View | None = None
        """The first value of a secret in the original."""
        self.is_of_sagemaker = False
        """Whether the original is a training job of SageMaker, whose secrets are in Secrets Manager."""

    def get(self, field: str) -> Any:
        """The value of `resources.gpus`; None where it is not said yet."""
        value: Any = self.fields
        for step in field.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        return value

    def put(self, field: str, value: Any, view: View) -> bool:
        """Set a field to the value read from `view`; False, with a finding at `view`, if the parser rejects it."""
        wanted = _with(self.fields, field.split("."), value)
        problem = _problem(
            {name: part for name, part in wanted.items() if name not in ("run", "command", "launcher", "name")}
        )
        if problem is None:
            self.fields = wanted
            view.take()
            return True
        view.leave(f"{field}: {problem[0]}", problem[1] or "write it by hand")
        return False

    def put_text(self, field: str, view: View) -> None:
        """Set a field to the text of a view, if it has any."""
        if (text := view.text()) is not None:
            self.put(field, text, view)

    def put_seconds(self, field: str, view: View) -> None:
        """Set a field to the whole number of seconds of a view, if it has one."""
        if (seconds := view.whole()) is not None:
            self.put(field, float(seconds), view)

    def put_restarts(self, view: View) -> None:
        """Set the maximum of restarts, if the view has a number."""
        if (most := view.whole()) is not None:
            self.put("restarts", {"max": most}, view)

    def put_env(self, name: str, value: str, view: View) -> bool:
        """Set a variable; False, with a finding that does not show the value, if a job file must not hold it."""
        had = self.fields.get("env", {})
        if is_blank(value) and self.is_secret(name, "value"):
            view.take()
            self.put_secret(name, view, f"{name} has no value here, and would hide the user's")
            return False
        problem = _problem({"env": {name: value}})
        if problem is None:
            self.fields = {**self.fields, "env": {**had, name: value}}
            view.take()
            if name == "FI_PROVIDER" and value.lower() == "efa":
                view.remark(
                    "FI_PROVIDER=efa, and pods of a run get no EFA devices",
                    "take it out of env:, so that NCCL uses TCP, or run the job as it is where EFA is needed",
                )
            return True
        message, hint = problem
        if message.startswith("set by Windlass"):
            view.leave(f"{name}, which Windlass sets for each rank", "nothing to do", is_ours=True)
        elif "looks like a secret" in message:
            self.secret = self.secret or view
            view.leave(f"{name} {message}", secret_hint(name, of_sagemaker=self.is_of_sagemaker))
        else:
            view.leave(f"variable {name}: {message}", hint or "write it by hand")
        return False

    def put_secret(self, variable: str, view: View, meaning: str) -> None:
        """Add the secret of a variable, if its name leads back to the variable, and report how ranks get it."""
        name = secret_name(variable)
        if name.upper().replace("-", "_") == variable:
            self.add("secrets", name, view)
        view.remark(meaning, secret_hint(variable, of_sagemaker=self.is_of_sagemaker))

    @staticmethod
    def is_secret(name: str, value: str) -> bool:
        """Whether a job file must not hold a value of this name."""
        return looks_secret(re.sub(r"\W", "_", name), value)

    def add(self, field: str, entry: Any, view: View) -> bool:
        """Append an entry to a list that does not have it yet."""
        had = list(self.get(field) or ())
        return self.put(field, had if entry in had else [*had, entry], view)

    def absorb(self, other: Draft) -> None:
        """Add the fields of another draft that this one does not have."""
        self.fields = _merged(self.fields, other.fields)
        self.secret = self.secret or other.secret

    def put_name(self, view: View) -> None:
        """Set the job's name to the nearest legal one of a view, if it has text and there is no name yet."""
        if (name := view.text()) is None or "name" in self.fields:
            return
        self.fields["name"] = legal = legal_name(name)
        if legal != name.rstrip("-"):  # generateName ends with a dash
            view.remark(
                f"the name {name[:60]}", f"it is {legal} here: 40 letters, digits and '-' at most", is_ours=True
            )


def _with(fields: Mapping[str, Any], steps: list[str], value: Any) -> dict[str, Any]:
    first, *others = steps
    if not others:
        return {**fields, first: value}
    inner = fields.get(first)
    return {**fields, first: _with(inner if isinstance(inner, dict) else {}, others, value)}


def _merged(mine: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**others, **mine}
    for name in mine.keys() & others.keys():
        if isinstance(mine[name], dict) and isinstance(others[name], dict):
            merged[name] = _merged(mine[name], others[name])
    return merged


def _problem(fields: Mapping[str, Any]) -> tuple[str, str] | None:
    """Message and hint of the first problem that the job parser finds in these fields."""
    try:
        job_from_mapping({"name": "job", "run": "train.py", **fields})
    except JobFileError as error:
        return error.problems[0].message, error.problems[0].hint
    return None
