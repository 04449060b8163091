"""Formats the output of `windlass cluster`: plans with prices, results of `up` and `down`, audits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from windlass.cli.formatting import Paint, count, duration, titled, visible

if TYPE_CHECKING:
    from windlass.clusters.audit import AuditReport, FoundObject
    from windlass.clusters.components.manager import ComponentStatus
    from windlass.clusters.down import ClusterRemoved
    from windlass.clusters.plan import ClusterPlan
    from windlass.clusters.removal_checks import ClusterUsage
    from windlass.clusters.status import ClusterStatus, ClusterSummary
    from windlass.clusters.terraform import Change
    from windlass.clusters.up import ClusterMade
    from windlass.pricing.cluster import Estimate

COLOURS: Final = {"create": "green", "update": "yellow", "replace": "red", "delete": "red", "import": "cyan"}
PRIVATE: Final = (
    "the API server is reachable only from the VPC; for access, set network: {public_access: [YOUR ADDRESS/32]}"
)
INCOMPLETE: Final = "not complete according to this machine: windlass cluster up; after a lost state: --recover"
SHOWN: Final = 12
"""Maximum number of resources listed for each kind of change."""
_USERS: Final = frozenset(
    {
        "autoscaling autoscaling group",
        "eks node group",
        "sagemaker app",
        "efs mount target",
        "elbv2 load balancer",
        "iam instance profile",
    }
)
"""Kinds of AWS resources that use other resources, and are therefore removed first."""
_USED: Final = ("", "iam role", "iam policy", "ec2 elastic IP address", "ec2 network interface", "ec2 subnet",
                "ec2 route table", "ec2 internet gateway", "ec2 security group", "ec2 VPC")  # fmt: skip
"""Kinds of AWS resources that other resources use, in the order of removal, after all other kinds."""
NOT_COMPARED: Final = (
    "not compared: what controllers made (load balancers, volumes, nodes), objects in buckets and in Kubernetes, and "
    "rules of groups of EKS that are not open to the world"
)
KEPT: Final = "windlass.dev/keep=true"
STATES: Final = {"up": "green", "incomplete": "yellow", "unknown": "yellow", "configured": None, "damaged": "red"}


def plan_lines(plan: ClusterPlan, paint: Paint) -> list[str]:
    """Returns the changes, their duration and the price of the cluster."""
    lines = [f"{paint(plan.name, bold=True)} in {plan.region}: {plan.summary}"]
    lines += _changes(plan.changes, paint)
    if plan.drift:
        lines += ["", "changed in AWS by others, and put back:", *_changes(plan.drift, paint)]
    if plan.changes and plan.minutes >= 1:
        lines += ["", f"AWS takes about {plan.minutes:.0f} minutes for it"]
    if plan.is_private:
        lines += ["", PRIVATE]
    lines += ["", *cluster_note_lines(plan.notes, paint)] if plan.notes else []
    return [*lines, "", *price_lines(plan.price, plan.region, paint), "", f"working folder: {plan.path}"]


def cluster_note_lines(notes: Sequence[str], paint: Paint) -> list[str]:
    """Formats the notes of a plan."""
    return [f"{paint('note', 'yellow')}: {visible(one)}" for one in notes]


def _changes(changes: Sequence[Change], paint: Paint) -> list[str]:
    """Lists changed resources by address; more than `SHOWN` are counted by type."""
    lines = []
    for action in dict.fromkeys(one.action for one in changes):
        chosen = [one for one in changes if one.action == action]
        word = paint(action, COLOURS.get(action))
        if len(chosen) <= SHOWN:
            lines += [f"  {word} {one.address}{f' ({one.reason})' if one.reason else ''}" for one in chosen]
        else:
            kinds = Counter(one.address.rpartition("module.")[2].split(".")[0] for one in chosen)
            lines += [f"  {word} {many} × {kind}" for kind, many in sorted(kinds.items(), key=lambda item: -item[1])]
    return lines


def price_lines(price: Estimate, region: str, paint: Paint) -> list[str]:
    """Formats the price of a cluster, one row per item."""
    rows = [[visible(row.what), _month(row.per_month_usd, is_by_use=row.is_by_use)] for row in price.rows]
    lines = titled(("WHAT", "USD A MONTH"), rows, paint)
    least = "at least " if any(row.per_month_usd is None and not row.is_by_use for row in price.rows) else ""
    lines += ["", f"idle: {paint(f'{least}{price.base_month_usd:,.0f} USD a month', bold=True)}"]
    for pool in price.pools:
        amount = "unknown" if pool.per_hour_usd is None else f"{pool.per_hour_usd:,.2f} USD an hour"
        lines.append(f"{visible(pool.rows[0].what)}, with disks: {amount}")
    if price.unknown:
        unknown = ", ".join(map(visible, price.unknown))
        lines.append(f"no price is known for: {unknown}; windlass prices update --region {region}")
    if price.dates:
        between = price.dates[0] if price.dates[0] == price.dates[-1] else f"{price.dates[0]} to {price.dates[-1]}"
        lines.append(paint(f"list prices of {between}, without discounts and taxes", dim=True))
    return lines


def _month(amount: float | None, *, is_by_use: bool = False) -> str:
    if is_by_use:
        return "by use"
    return "unknown" if amount is None else f"{amount:,.2f}"


def made_lines(made: ClusterMade, paint: Paint) -> list[str]:
    """Returns the output lines of `cluster up`."""
    work = f"{made.added} made, {made.changed} changed, {made.destroyed} removed"
    lines = [f"{paint(made.name, 'green', bold=True)} is up: {work} in {duration(made.seconds)}"]
    lines += ["", *component_lines(made.components, paint)] if made.components else []
    places = [f"kubeconfig: {made.kubeconfig}", f"bucket: s3://{made.bucket}"]
    return [*lines, "", *places, f"Next: windlass run --on {made.target}"]


def component_lines(found: Sequence[ComponentStatus], paint: Paint) -> list[str]:
    """Formats a table of operators."""
    rows = []
    for one in found:
        health = paint("healthy", "green") if one.is_healthy else paint(one.state, "yellow")
        version = one.installed if one.installed in ("", one.wanted) else f"{one.installed} (wanted {one.wanted})"
        rows.append([one.name, version or "–", health, visible("; ".join(one.problems))])
    return titled(("OPERATOR", "VERSION", "STATE", "WHY"), rows, paint)


def list_lines(found: Sequence[ClusterSummary], paint: Paint) -> list[str]:
    """Formats a table of clusters."""
    rows = [
        [one.name, one.region, one.kubernetes, paint(one.state, STATES.get(one.state)), str(one.resources or "–")]
        for one in found
    ]
    damaged = [f"{one.name} cannot be read: windlass cluster status {one.name}" for one in found if not one.kubernetes]
    return [*titled(("NAME", "REGION", "KUBERNETES", "STATE", "RESOURCES"), rows, paint), *damaged]


def status_lines(found: ClusterStatus, paint: Paint) -> list[str]:
    """Returns the output lines of `cluster status`."""
    lines = [*list_lines([found.summary], paint), ""]
    if found.drift:
        lines += ["changed in AWS by others (windlass cluster up puts it back):", *_changes(found.drift, paint)]
    if found.added:
        lines += ["added in AWS by others:", *(f"  {visible(one.group)}: {one.text}" for one in found.added), "remove:"]
        lines += [f"  {visible(one.remedy)}" for one in found.added]
    lines += [f"{paint('not checked', 'yellow')}: {visible(one)}" for one in found.unchecked]
    if found.drift or found.added or found.unchecked:
        lines.append(NOT_COMPARED)
    elif found.summary.state == "incomplete":
        lines.append(INCOMPLETE)
    elif found.summary.state == "unknown":
        lines.append("not known: its state is in a bucket, which was not read")
    else:
        lines += ["nothing that was compared was changed in AWS by others", NOT_COMPARED]
    lines += [f"{paint('note', 'yellow')}: {visible(one)}" for one in found.notes]
    if found.unreachable:
        lines += ["", f"the API server does not answer: {visible(found.unreachable)}"]
    if found.components:
        lines += ["", *component_lines(found.components, paint)]
    return lines


def usage_lines(seen: ClusterUsage, paint: Paint) -> list[str]:
    """Returns the runs and stored files of a cluster, shown before its removal is confirmed."""
    lines = [paint(f"active: {visible(one)}", "yellow") for one in seen.active]
    if seen.unchecked:
        lines.append(paint(f"not checked: {visible(seen.unchecked)}", "yellow"))
    held = [f"  {visible(str(one))}" for one in seen.holdings]
    return [*lines, *(["to be removed by controllers:", *held] if held else [])]


def removed_lines(done: ClusterRemoved, paint: Paint) -> list[str]:
    """Returns the resources that `down` removed, and the audit."""
    lines = [f"{done.name}: {count(done.destroyed, 'resource')} destroyed in {duration(done.seconds)}"]
    for word, group in (("removed by its controller", done.drained), ("left", done.left), ("kept", done.kept)):
        lines += [f"  {word}: {one.ref.kind} {visible(one.ref.name)}{_because(one.why)}" for one in group]
    lines += [f"  {paint('lost', 'red')}: {visible(one)}" for one in done.lost]
    return [*lines, "", *audit_lines(done.audit, paint)]


def _because(why: str) -> str:
    return f" ({visible(why)})" if why else ""


def audit_lines(found: AuditReport, paint: Paint) -> list[str]:
    """Returns the findings of an audit."""
    lines, what = [], f"audit of {found.cluster} in {found.region}, account {found.account_id}"
    for title, group in (
        ("left in AWS", found.leaks),
        ("kept on purpose", found.kept),
        ("perhaps of this cluster: look", found.possible),
    ):
        if group:
            lines += [f"{title}:", *_objects(group, paint), ""]
    for one in found.unknown:
        hint = f" ({visible(one.hint)})" if one.hint else ""
        lines.append(f"{paint('not known', 'yellow')}: {visible(one.kind)}: {one.asked}: {visible(one.reason)}{hint}")
    if found.is_clean:
        word = paint("nothing that bills is left" if found.possible else "nothing is left", "green", bold=True)
        kept = f", but {len(found.kept)} kept on purpose" if found.kept else ""
        kept += f", but {len(found.possible)} to look at" if found.possible else ""
        asked = f"({found.num_calls} questions to AWS; other regions were not asked)"
        return [*lines, f"{what}: {word}{kept} {asked}"]
    parts = [f"{count(len(found.leaks), 'object')} left"] if found.leaks else []
    if unproved := [one for one in found.possible if one.bills and not one.kept_on_purpose]:
        parts.append(f"{count(len(unproved), 'object')} that may be of it and bill")
        lines += [f"what is not of {found.cluster} is left out once it has the tag {KEPT}", ""]
    parts += [f"{count(len(found.unknown), 'question')} without an answer"] if found.unknown else []
    lines.append(
        f"{what}: {paint(' and '.join(parts), 'red', bold=True)}, at least {found.usd_per_month:,.2f} USD a month"
    )
    return lines


def _turn(one: FoundObject) -> int:
    """Returns the sort key for removal: AWS refuses to delete a resource that another one uses."""
    kind = f"{one.service} {one.kind}"
    return -1 if kind in _USERS else _USED.index(kind) if kind in _USED else 0


def _objects(group: Sequence[FoundObject], paint: Paint) -> list[str]:
    """Returns a table of resources, and below it the commands that remove them, each on one line to be copied."""
    rows = [
        [
            f"{one.service} {one.kind}",
            visible(one.name if one.name == one.id else f"{one.name} ({one.id})"),
            _month(one.usd_per_month) if one.bills else "–",
            visible(one.detail),
        ]
        for one in group
    ]
    remedies = [f"  {visible(one.remedy)}" for one in sorted(group, key=_turn) if one.remedy]
    return [
        *titled(("KIND", "NAME", "USD A MONTH", "DETAIL"), rows, paint),
        *(["remove:", *remedies] if remedies else []),
    ]
