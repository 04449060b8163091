"""Hypothesis strategies for valid jobs of every shape."""

from __future__ import annotations

import shlex
from typing import Any

from hypothesis import strategies as st

from windlass.errors import JobFileError
from windlass.spec.job import Job

names = st.from_regex(r"\A[a-z]([a-z0-9-]{0,20}[a-z0-9])?\Z")
labels = st.from_regex(r"\A[A-Za-z0-9]([-._A-Za-z0-9]{0,20}[A-Za-z0-9])?\Z")
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
lines = texts.map(lambda text: "".join(c for c in text if c.isprintable()).strip()).filter(bool)
durations = st.one_of(
    st.floats(0.001, 3e8),
    st.integers(1, 10**8),
    st.builds("{}{}".format, st.integers(1, 1000), st.sampled_from(["s", "min", "h", "ms"])),
)
sizes = st.one_of(
    st.integers(2**20, 2**50),
    st.builds("{}{}".format, st.integers(2, 999), st.sampled_from(["GiB", "MB", "Mi", "T", "000000"])),
)
scripts = st.builds(
    lambda script, args: shlex.join([script, *args]),
    st.sampled_from(["train.py", "a/b c/train.py", "./run.sh", "prog"]),
    st.lists(texts, max_size=4),
)
env_names = st.from_regex(r"\A[A-Z_][A-Z0-9_]{0,12}\Z")
nodes = st.one_of(
    st.integers(1, 100_000),
    st.integers(1, 50).flatmap(lambda low: st.integers(low, 99).map(lambda high: {"min": low, "max": high})),
)


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


_fields = st.fixed_dictionaries(
    {"name": names},
    optional={
        "launcher": st.sampled_from(["torchrun", "mpi", "plain"]),
        "nodes": nodes,
        "procs_per_node": st.one_of(st.integers(1, 1024), st.just("auto")),
        "resources": _some(
            gpus=st.integers(0, 16),
            cpus=st.floats(0.01, 1000),
            memory=sizes,
            shm=sizes,
            instance=labels,
            gpu_type=labels,
        ),
        "code": lines,
        "image": st.from_regex(r"\A[a-z]+(/[a-z]+)?(:[a-z0-9.]{1,8})?\Z"),
        "env": st.dictionaries(
            env_names, st.one_of(texts, st.integers(), st.floats(allow_nan=False, allow_infinity=False))
        ),
        "secrets": st.lists(labels, max_size=3, unique=True),
        "data": st.lists(
            st.fixed_dictionaries(
                {"name": names, "source": lines}, optional={"via": st.sampled_from(["copy", "mount", "stream"])}
            ),
            max_size=3,
            unique_by=lambda entry: entry["name"],
        ),
        "outputs": st.one_of(
            lines, _some(to=lines, collect=st.lists(st.sampled_from(["out/**", "*.pt", "[ab]?/x"]), max_size=2))
        ),
        "checkpoint": st.one_of(
            _some(every=st.one_of(durations, st.sampled_from(["20 steps", " 1 step"])), keep=st.integers(1, 9)),
            st.fixed_dictionaries(
                {
                    "find": lines,
                    "resume": st.sampled_from(["--resume {path}", "-r '{path} x'", "--ckpt={path} --again"]),
                },
                optional={"keep": st.integers(1, 9)},
            ),
        ),
        "restarts": st.one_of(
            st.integers(0, 9),
            _some(
                max=st.integers(0, 9),
                on=st.sets(st.sampled_from(["failure", "preemption", "node-loss"]), min_size=1).map(sorted),
            ),
        ),
        "timeout": durations,
        "grace": durations,
        "hang": st.none() | durations.filter(bool),
        "queue": labels,
        "priority": labels,
        "python": lines,
        "warm": st.lists(st.sampled_from(["torch", "numpy", "a.b"]), unique=True),
        "start": st.sampled_from(["warm", "cold"]),
        "volumes": st.lists(
            st.fixed_dictionaries({"claim": labels, "path": names.map("/{}".format)}),
            max_size=2,
            unique_by=lambda v: v["path"],
        ),
        "progress": st.sampled_from([r"step (?P<step>\d+)", r"(?P<loss>[\d.]+) \"x\" é"]),
        "local": _some(
            netns=st.just(True),
            rate=st.sampled_from(["1gbit", "1.5mbit"]),
            port=st.integers(1, 65535),
        ),
        "kubernetes": _some(via=st.sampled_from(["auto", "jobset"]), runtime=labels, namespace=labels),
        "sagemaker": _some(warm_pool=durations),
    },
)
_starts = st.one_of(
    scripts.map(lambda run: {"run": run}),
    st.lists(texts, max_size=3).map(lambda args: {"command": ["prog", *args]}),
)
mappings: st.SearchStrategy[dict[str, Any]] = st.builds(lambda fields, start: {**fields, **start}, _fields, _starts)
"""Mappings with the keys of a job file; some combine fields that exclude each other."""


_DRAWN_APART = (
    "torchrun, which",
    "is a range",
    "no GPU",
    "share this machine's",
    "looks like a secret",
    "set by",
    "password",
)
"""Permitted reasons for refusing independently drawn fields; other errors are bugs of the strategies or of Windlass."""


def _job(mapping: dict[str, Any]) -> Job | None:
    try:
        return Job(**mapping)
    except JobFileError as error:
        strange = [p for p in error.problems if not any(words in p.message for words in _DRAWN_APART)]
    assert not strange
    return None


jobs: st.SearchStrategy[Job] = mappings.map(_job).filter(lambda job: job is not None)  # type: ignore[assignment]
