"""Pods for which no machine has room: which resource, on how many machines, and what would fit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from windlass.diagnose.observations import MachineSeen, PodSeen
from windlass.diagnose.rules.case import Case
from windlass.diagnose.verdict import Verdict

_SHORT: Final = re.compile(r"(\d+) Insufficient ([\w./-]*\w)")
_OTHER: Final = (
    (re.compile(r"(\d+) node\(s\) didn't match Pod's node affinity/selector"), "selector"),
    (re.compile(r"(\d+) node\(s\) had untolerated taint(?:\(s\)|s)? ?(\{[^}]*\})?"), "taint"),
    (re.compile(r"(\d+) node\(s\) were unschedulable"), "cordoned"),
    (re.compile(r"(\d+) Too many pods"), "pods"),
)
_UNITS: Final = {
    "": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30,
    "Ti": 2.0**40,
}  # fmt: skip
FIELDS: Final = {"cpu": "resources.cpus", "memory": "resources.memory", "nvidia.com/gpu": "resources.gpus"}


def unschedulable(case: Case, waiting: Sequence[PodSeen], evidence: tuple[str, ...]) -> Verdict:
    """The verdict on pods of which the scheduler says that they fit nowhere."""
    words = waiting[0].message
    total = re.search(r"0/(\d+) nodes are available", words)
    of = f" of {total[1]}" if total else ""
    asked, selector = _asked(case)
    short = [(int(count), resource) for count, resource in _SHORT.findall(words)]
    fixes: list[str] = []
    told: list[str] = []
    for count, resource in sorted(short, reverse=True):
        amount = f" ({asked[resource]} each)" if resource in asked else ""
        told.append(f"{count}{of} machines have too little {resource}{amount}")
        fixes.append(_what_fits(resource, asked.get(resource), case.seen.cluster.machines if case.seen.cluster else ()))
    for pattern, kind in _OTHER:
        if found := pattern.search(words):
            tell, fix = _other(kind, f"{found[1]}{of}", found[2] if found.lastindex == 2 else "", selector)
            told.append(tell)
            fixes.append(fix)
    if not told:
        told.append("no machines are there" if "no nodes available" in words else words.partition(": ")[2] or words)
        fixes.append("see: kubectl get nodes")
    many = f"{len(waiting)} pods find" if len(waiting) > 1 else f"pod {waiting[0].name} finds"
    machines = tuple(_room(case, [resource for _, resource in short] or ["nvidia.com/gpu"], selector))
    return Verdict("unschedulable", f"{many} no place: {'; '.join(told)}", None, (*evidence, *machines),
                   "; ".join(dict.fromkeys(fixes)), 107)  # fmt: skip


def _other(kind: str, count: str, detail: str, selector: Mapping[str, str]) -> tuple[str, str]:
    """What keeps machines out that have room."""
    wanted = ", ".join(f"{name}={value}" for name, value in selector.items())
    return {
        "selector": (f"{count} machines are not of the kind that was asked for" + (f" ({wanted})" if wanted else ""),
                     "correct resources.instance: or resources.gpu_type:, or add such machines"),
        "taint": (f"{count} machines are kept for others by a taint {detail}".rstrip(),
                  "use machines without that taint, or have a policy tolerate it"),
        "cordoned": (f"{count} machines take no new pods (cordoned)", "kubectl uncordon NAME, when its work is done"),
        "pods": (f"{count} machines have as many pods as they may", "add machines, or wait for pods to end"),
    }[kind]  # fmt: skip


def _what_fits(resource: str, asked: str | None, machines: Sequence[MachineSeen]) -> str:
    """What to change, by the largest machine there is."""
    field = FIELDS.get(resource, f"of {resource}")
    sizes = [one.allocatable[resource] for one in machines if resource in one.allocatable]
    if asked is None or not machines:
        return f"ask for less ({field}), or add machines"
    largest = max(sizes, key=amount, default="0")
    if not amount(largest):
        return f"no machine has any {resource}: add such machines"
    if amount(asked) > amount(largest):
        return f"the largest machine has {largest} {resource}: ask for no more ({field}), or add larger machines"
    return f"machines that are large enough are in use: it starts when they are free; or ask for less ({field})"


def _room(case: Case, resources: Sequence[str], selector: Mapping[str, str]) -> Iterator[str]:
    """A line for each machine, with what it has of what is short, and how it differs from what was asked for."""
    for machine in (case.seen.cluster.machines if case.seen.cluster else ())[:8]:
        had = [
            f"{machine.allocatable[name]} {name}" for name in dict.fromkeys(resources) if name in machine.allocatable
        ]
        had += [f"{name}={machine.labels.get(name, 'nothing')}" for name in selector]
        yield f"machine {machine.name} has {', '.join(had) or 'none of it'}" + (
            "" if machine.is_ready else ", and is not ready"
        )


def amount(text: str) -> float:
    """`500m`, `16Gi` and `2` as numbers; 0 for what is none."""
    found = re.fullmatch(r"([\d.]+)([a-zA-Z]*)", text.strip())
    return float(found[1]) * _UNITS.get(found[2], 0.0) if found else 0.0


def _asked(case: Case) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """What a pod asks for, and the labels that its machine must have."""
    return case.container.get("resources", {}).get("requests", {}), case.pod_spec.get("nodeSelector", {})
