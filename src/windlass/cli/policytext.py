"""Formats the output of `windlass cluster policy`."""

from __future__ import annotations

import json
from collections.abc import Iterator

from windlass.cli.formatting import Paint
from windlass.clusters.policies import LONGEST
from windlass.clusters.policies.named import ClusterPolicies


def policy_lines(found: ClusterPolicies, paint: Paint) -> Iterator[str]:
    """Yields each policy with its users, size, JSON, and the reasons for its statements."""
    if found.written:
        yield from (f"{path} written" for path in found.written)
    for one in () if found.written else found.policies:
        yield paint(f"# {one.name}: for {one.whom}; {one.size:,} of {LONGEST:,} characters", bold=True)
        yield from json.dumps(one.document, indent=2).splitlines()
        yield from (f"# {note}" for note in one.notes)
        yield ""
    yield f"# for account {found.account_id}"
    if len(found.policies) > 1:
        yield f"# each is a separate managed policy, limited to {LONGEST:,} characters at most"
