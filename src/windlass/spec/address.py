"""Reads from a targets file how a cluster is reached, without the models that check all fields of a target."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from windlass.spec.yamltext import read_yaml

PLAIN: Final = re.compile(r"[a-z](?:[-a-z0-9]{0,38}[a-z0-9])?")
"""Names that are legal for a target and for a namespace alike."""
PATH: Final = re.compile(r"~?/[-\w./+@]*[-\w.+@]", re.ASCII)
"""Paths that certainly are absolute, on one line."""


class ClusterAddress(NamedTuple):
    """What commands on existing runs need of a target; the fields are those of `KubernetesTarget`."""

    name: str
    context: str
    namespace: str
    kind: str = "kubernetes"
    kubeconfig: str | None = None


def read_address(files: Iterable[tuple[str, str]], name: str) -> ClusterAddress | None:
    """The address of the target called `name`, by the first of these targets files that has one of that name.

    `files` are their YAML texts, each with the name of its file. None where only `parse_targets` can decide: for other
    kinds, and for what is not certainly right. Further fields of the target are not checked: they matter to those who
    plan a run. Raises JobFileError for text that is not YAML.
    """
    for text, where in files:
        mapping, places = read_yaml(text, where, "", may_be_empty=True)
        if places.problems:
            return None
        if name in mapping:
            return _address(name, mapping[name])
    return None


def _address(name: str, entry: object) -> ClusterAddress | None:
    if name == "local" or not isinstance(entry, dict) or entry.get("kind") != "kubernetes" or "name" in entry:
        return None
    context, namespace = entry.get("context"), entry.get("namespace", "default")
    if not (isinstance(context, str) and context and context.isprintable() and context == context.strip()):
        return None
    if not (isinstance(namespace, str) and PLAIN.fullmatch(namespace) and PLAIN.fullmatch(name)):
        return None
    kubeconfig = entry.get("kubeconfig")
    if kubeconfig is not None and not (isinstance(kubeconfig, str) and PATH.fullmatch(kubeconfig)):
        return None
    return ClusterAddress(name, context, namespace, kubeconfig=kubeconfig)
