"""A job file under construction: a field is set only if the job parser accepts it, and reported otherwise."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from windlass.errors import JobFileError
from windlass.importers.field_hints import secret_hint, secret_name
from windlass.importers.secret_words import is_blank
from windlass.importers.source import View
from windlass.spec.names import legal_name, looks_secret
from windlass.spec.parse import job_from_mapping
from windlass.spec.pod_patch import NODE, PatchRefused, combined

EFA: Final = "vpc.amazonaws.com/efa"


class Draft:
    """The fields of a job file under construction."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.target: dict[str, Any] = {}
        """Fields of the target on which the original runs, if it sets any."""
        self.secret: View | None = None
        """View of the first secret value in the original."""
        self.is_of_sagemaker = False
        """Whether the original is a training job of SageMaker, whose secrets are in Secrets Manager."""

    def get(self, field: str) -> Any:
        """Returns the value of a field such as `resources.gpus`; None if it is not set yet."""
        value: Any = self.fields
        for step in field.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        return value

    def put(self, field: str, value: Any, view: View) -> bool:
        """Sets a field to the value read from `view`; returns False, with a finding at `view`, if the parser rejects
        it.
        """
        wanted = _with(self.fields, field.split("."), value)
        problem = _problem(
            {name: part for name, part in wanted.items() if name not in ("run", "command", "launcher", "name")}
        )
        if problem is None:
            self.fields = wanted
            view.take()
            return True
        if "looks like a secret" in problem[0]:
            self.secret = self.secret or view
        view.report(f"{field}: {problem[0]}", problem[1] or "write it by hand")
        return False

    def put_entry(self, field: str, key: str, value: Any, view: View) -> bool:
        """Sets one entry of a mapping."""
        return self.put(field, {**(self.get(field) or {}), key: value}, view)

    def put_pod(self, spec: Mapping[str, Any], view: View) -> bool:
        """Adds fields of a pod's spec to the patch of the ranks' pods, unless no patch may set them."""
        try:
            patch = combined(self.get("kubernetes.pod") or {}, {"spec": spec}, NODE)
        except PatchRefused as refused:
            view.report(f"kubernetes.pod.{refused}", refused.hint)
            return False
        return self.put("kubernetes.pod", patch, view)

    def put_container(self, fields: Mapping[str, Any], view: View) -> bool:
        """Adds fields of the training container to the patch of the ranks' pods, unless no patch may set them."""
        return self.put_pod({"containers": [{"name": NODE, **fields}]}, view)

    def put_text(self, field: str, view: View) -> None:
        """Sets a field to the text of a view, if it has any."""
        if (text := view.text()) is not None:
            self.put(field, text, view)

    def put_seconds(self, field: str, view: View) -> None:
        """Sets a field to the whole number of seconds of a view, if it has one."""
        if (seconds := view.whole()) is not None:
            self.put(field, float(seconds), view)

    def put_restarts(self, view: View) -> None:
        """Sets the maximum number of restarts, if the view has a number."""
        if (most := view.whole()) is not None:
            self.put("restarts", {"max": most}, view)

    def put_env(self, name: str, value: str, view: View) -> bool:
        """Sets a variable; returns False, with a finding that does not show the value, if a job file must not contain
        it.
        """
        had = self.fields.get("env", {})
        if is_blank(value) and self.is_secret(name, "value"):
            view.take()
            self.put_secret(name, view, f"{name} has no value here, and would hide the user's")
            return False
        problem = _problem({"env": {name: value}})
        if problem is None:
            self.fields = {**self.fields, "env": {**had, name: value}}
            view.take()
            has_efa = self.is_of_sagemaker or EFA in (self.get("kubernetes.limits") or {})
            if name == "FI_PROVIDER" and value.lower() == "efa" and not has_efa:
                view.remark(
                    "FI_PROVIDER=efa, and the job requests no EFA devices", f"kubernetes: {{limits: {{{EFA}: N}}}}"
                )
            return True
        message, hint = problem
        if message.startswith("set by Windlass"):
            view.report(f"{name}, which Windlass sets for each rank", "nothing to do", is_handled=True)
        elif "looks like a secret" in message:
            self.secret = self.secret or view
            view.report(f"{name} {message}", secret_hint(name, of_sagemaker=self.is_of_sagemaker))
        else:
            view.report(f"variable {name}: {message}", hint or "write it by hand")
        return False

    def put_secret(self, variable: str, view: View, meaning: str) -> None:
        """Adds the secret of a variable, if the variable follows from its name, and reports how ranks get it."""
        name = secret_name(variable)
        if name.upper().replace("-", "_") == variable:
            self.add("secrets", name, view)
        view.remark(meaning, secret_hint(variable, of_sagemaker=self.is_of_sagemaker))

    @staticmethod
    def is_secret(name: str, value: str) -> bool:
        """Whether a variable of this name and value is a secret, which a job file must not contain."""
        return looks_secret(re.sub(r"\W", "_", name), value)

    def add(self, field: str, entry: Any, view: View) -> bool:
        """Appends an entry to a list unless the list contains it already."""
        had = list(self.get(field) or ())
        return self.put(field, had if entry in had else [*had, entry], view)

    def absorb(self, other: Draft) -> None:
        """Adds the fields of another draft that this draft does not have."""
        self.fields = _merged(self.fields, other.fields)
        self.secret = self.secret or other.secret

    def put_name(self, view: View) -> None:
        """Sets the job's name to the nearest valid form of the view's text, unless the name is set already."""
        if (name := view.text()) is None or "name" in self.fields:
            return
        self.fields["name"] = legal = legal_name(name)
        if legal != name.rstrip("-"):  # generateName ends with a dash
            view.remark(
                f"the name {name[:60]}", f"it is {legal} here: 40 letters, digits and '-' at most", is_handled=True
            )


def _with(fields: Mapping[str, Any], steps: list[str], value: Any) -> dict[str, Any]:
    first, *others = steps
    if not others:
        return {**fields, first: value}
    inner = fields.get(first)
    return {**fields, first: _with(inner if isinstance(inner, dict) else {}, others, value)}


def _merged(mine: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    found = {**others, **mine}
    for name in mine.keys() & others.keys():
        if isinstance(mine[name], dict) and isinstance(others[name], dict):
            found[name] = (
                combined(others[name], mine[name], NODE) if name == "pod" else _merged(mine[name], others[name])
            )
    return found


def _problem(fields: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns message and hint of the first problem that the job parser finds in these fields."""
    try:
        job_from_mapping({"name": "job", "run": "train.py", **fields})
    except JobFileError as error:
        return error.problems[0].message, error.problems[0].hint
    return None
