"""Parses job, targets and cluster files and mappings into their models; errors list all problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from windlass.errors import JobFileError, Problem, near
from windlass.spec.job import Job
from windlass.spec.positions import Path, Positions, found, in_order, spell
from windlass.spec.problems import MISSING
from windlass.spec.sections import Document
from windlass.spec.yamltext import read_yaml

if TYPE_CHECKING:
    from windlass.spec.cluster import Cluster
    from windlass.spec.targets import Target

Model = TypeVar("Model", bound=Document)


def parse_job(text: str, where: str = "job.yaml") -> Job:
    """Parses the YAML text of a job file; `where` is the name of the file in messages.

    Raises `JobFileError` with all problems in the order of the file, each with its line.
    """
    return _parsed(Job, text, where, "four lines are enough: name, run, nodes and procs_per_node")


def parse_cluster(text: str, where: str = "cluster.yaml") -> Cluster:
    """Parses the YAML text of a cluster file; `where` is the name of the file in messages.

    Raises `JobFileError` with all problems in the order of the file, each with its line.
    """
    from windlass.spec.cluster import Cluster

    return _parsed(Cluster, text, where, "two lines are enough: name and region")


def _parsed(model: type[Model], text: str, where: str, hint: str) -> Model:
    mapping, positions = read_yaml(text, where, hint)
    made = model.model_validate(mapping, context=positions)
    if positions.problems:
        raise JobFileError([problem for _, problem in positions.problems])
    return made


def job_from_mapping(mapping: Mapping[str, Any], where: str = "job") -> Job:
    """Returns the job of a mapping with the keys of a job file; `where` is its name in messages.

    Raises `JobFileError` with all problems in the order of the mapping.
    """
    if not isinstance(mapping, Mapping):
        raise JobFileError([Problem(where, "", f"expected a mapping, found a {type(mapping).__name__}")])
    fields = {str(key): value for key, value in mapping.items()}
    return Job.model_validate(fields, context=Positions.of(fields, where))


def parse_targets(
    text: str,
    where: str = "targets.yaml",
    model_of: Callable[[str], type[Any] | None] | None = None,
    added_kinds: Callable[[], Sequence[str]] = tuple,
) -> dict[str, Target]:
    """Parses the YAML text of a targets file; the result always includes `local`.

    `model_of` returns the pydantic model of a kind, also for kinds that other packages add; the default looks up
    `KINDS`. `added_kinds` returns the names of added kinds, for messages. Raises `JobFileError` with all problems in
    the order of the file, each with its line.
    """
    # Imported here to save start-up time, because a job on this machine needs no targets file.
    from windlass.spec.targets import KINDS, LocalTarget

    hint = "begin with the name of a target, and its fields below it"
    mapping, positions = read_yaml(text, where, hint, may_be_empty=True)
    targets: dict[str, Target] = {"local": LocalTarget(name="local")}
    ranked = list(positions.problems)
    for name, entry in mapping.items():

        def refused(field: str, message: str, hint: str, path: Path = (name,)) -> None:
            path = (*path, field) if field else path
            ranked.append((positions.rank(path), Problem(positions.at(path), spell(path), message, hint)))

        if not isinstance(entry, dict):
            refused("", f"expected a mapping, found {found(entry)}", f"write for example {name}: {{kind: kubernetes}}")
            continue
        kind = entry.get("kind")
        model = (model_of or KINDS.get)(kind) if isinstance(kind, str) else None
        if model is None:
            if (name, "kind") not in positions.refused:
                kinds = [*KINDS, *added_kinds()]
                words = f"{', '.join(kinds[:-1])} or {kinds[-1]}"
                there = f"expected {words}, found {found(kind)}" if "kind" in entry else MISSING
                refused("kind", there, near(str(kind), kinds) or f"write for example {name}: {{kind: kubernetes}}")
            continue
        if name == "local" and kind != "local":
            refused("kind", f"expected local, found {kind}", "local is this machine; give the target another name")
            continue
        if "name" in entry:
            refused("name", "not a field", f"the name is the key, {name}")
            entry = {key: value for key, value in entry.items() if key != "name"}
        try:
            inside = replace(positions, below=(name,), problems=())
            targets[name] = model.model_validate({"name": name, **entry}, context=inside)
        except JobFileError as error:
            key = spell((name,))
            for problem in error.problems:
                # In the file, the name of a target is a key; the model's field `name` must not appear in messages.
                seen = replace(problem, field=key) if problem.field == f"{key}.name" else problem
                ranked.append((positions.rank((name,)), seen))
    if ranked:
        raise in_order(ranked)
    return targets
