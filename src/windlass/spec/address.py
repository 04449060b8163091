"""Reads the address of a cluster from a targets file, without loading the models that validate all fields."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from windlass.spec.yamltext import read_yaml

PLAIN: Final = re.compile(r"[a-z](?:[-a-z0-9]{0,38}[a-z0-9])?")
"""Matches names that are valid both for a target and for a namespace."""
PATH: Final = re.compile(r"~?/[-\w./+@]*[-\w.+@]", re.ASCII)
"""Matches paths that are certainly valid: absolute or below `~`, without spaces or special characters."""


class ClusterAddress(NamedTuple):
    """The fields of `KubernetesTarget` that commands on existing runs need."""

    name: str
    context: str
    namespace: str
    kind: str = "kubernetes"
    kubeconfig: str | None = None


def read_address(files: Iterable[tuple[str, str]], name: str) -> ClusterAddress | None:
    """Returns the address of the target `name`, from the first file that defines this target.

    `files` are pairs of YAML text and file name. Returns None for other kinds of target and for values that may be
    invalid, which `parse_targets` then checks. Other fields of the target are not checked, because only plans use them.
    Raises JobFileError for text that is not YAML.
    """
    for text, where in files:
        mapping, positions = read_yaml(text, where, "", may_be_empty=True)
        if positions.problems:
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
