"""A job that is being put together: a field is taken only if the job's own parser takes it, else it is left behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.errors import JobFileError
from windlass.spec.importing.source import View
from windlass.spec.names import legal_name
from windlass.spec.parse import job_from_mapping


class Draft:
    """The fields of a job, as a job file has them."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}

    def get(self, field: str) -> Any:
        """The value of `resources.gpus`; None where it is not said yet."""
        value: Any = self.fields
        for step in field.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        return value

    def put(self, field: str, value: Any, view: View) -> bool:
        """Take a value that `view` has said; False, with words about why, where no job may say so."""
        wanted = _with(self.fields, field.split("."), value)
        problem = _problem(
            {name: part for name, part in wanted.items() if name not in ("run", "command", "launcher", "name")}
        )
        if problem is None:
            self.fields = wanted
            return True
        view.leave(f"{field}: {problem[0]}", problem[1] or "write it by hand")
        return False

    def put_env(self, name: str, value: str, view: View) -> bool:
        """Take a variable; False, without its value in the words, where a job file must not hold it."""
        had = self.fields.get("env", {})
        problem = _problem({"env": {name: value}})
        if problem is None:
            self.fields = {**self.fields, "env": {**had, name: value}}
            return True
        message, hint = problem
        if message.startswith("set by Windlass"):
            view.leave(f"{name}, which Windlass sets for each rank", "nothing to do", is_ours=True)
        elif "looks like a secret" in message:
            fix = f"kubectl create secret generic NAME --from-literal={name}=…, and secrets: [NAME]"
            view.leave(f"{name} {message}", fix)
        else:
            view.leave(f"variable {name}: {message}", hint or "write it by hand")
        return False

    def add(self, field: str, entry: Any, view: View) -> bool:
        """Put one more entry into a list, once."""
        had = list(self.get(field) or ())
        return True if entry in had else self.put(field, [*had, entry], view)

    def absorb(self, other: Draft) -> None:
        """Take what another draft says and this one does not."""
        self.fields = _merged(self.fields, other.fields)

    def name(self, name: str, view: View) -> None:
        """Take a name, as near to it as a job may be called."""
        legal = legal_name(name)
        self.fields["name"] = legal
        if legal != name:
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
    found = dict(mine)
    for name, value in others.items():
        had = found.get(name)
        found[name] = (
            _merged(had, value) if isinstance(had, dict) and isinstance(value, dict) else found.get(name, value)
        )
    return found


def _problem(fields: Mapping[str, Any]) -> tuple[str, str] | None:
    """What the parser says against these fields."""
    try:
        job_from_mapping({"name": "job", "run": "train.py", **fields})
    except JobFileError as error:
        return error.problems[0].message, error.problems[0].hint
    return None
