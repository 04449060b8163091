"""Formats a plan: nodes and their command lines, and problems."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from windlass.cli.formatting import (
    Paint,
    count,
    duration,
    in_place,
    price,
    ranks_named,
    size,
    size_of_run,
    table,
    tilde,
    visible,
)
from windlass.plan.notes import Note
from windlass.plan.plan import Plan
from windlass.plan.steps import Added, CodeStep, NetworkStep, NodeStep, SentFile, Step
from windlass.worker.protocol import NodeSpec

NODES_SHOWN: Final = 8
"""Maximum number of nodes shown; the commands of further nodes differ only in their ranks."""
LARGEST_SHOWN: Final = 5
RULES_SHOWN: Final = 8


def plan_lines(plan: Plan, paint: Paint, *, verbose: int = 0) -> list[str]:
    """Returns the output lines of `windlass plan`; with `verbose` also the environment of each node."""
    shape = size_of_run(plan.num_nodes, plan.procs_per_node)
    least = plan.policy.min_nodes
    shape += f", and with {count(least, 'node')} if others are lost" if least < plan.num_nodes else ""
    spares = plan.num_spares
    shape += f", and {count(spares, 'spare')}" if spares else ""
    lines = [f"{paint(plan.name, bold=True)} on {plan.target}: {shape}", *_policy(plan, paint)]
    common = _common_environment(plan) if verbose else {}
    nodes_shown = 0
    for place, step in enumerate(plan.steps, 1):
        nodes_shown += isinstance(step, NodeStep)
        if nodes_shown > NODES_SHOWN and not verbose:
            lines += ["", f"… and {count(len(plan.steps) - place + 1, 'step')} more like these: windlass plan -v"]
            break
        has_setup = not plan.runs_here or nodes_shown == 1  # simulated nodes on one machine share one setup
        lines += ["", *_step(place, step, paint, verbose=verbose, common=common, has_setup=has_setup)]
    if common:
        lines += ["", "every node has", *(f"  {line}" for line in _environment(common, paint))]
    if plan.notes:
        lines += ["", *note_lines(plan.notes, paint)]
    if plan.price:
        included = f", {count(spares, 'spare')} included" if spares else ""
        per_hour = price(plan.price.per_hour, plan.price.currency)
        lines += ["", f"{per_hour} an hour{included} ({plan.price.source})"]
    blocked = sum(note.blocks for note in plan.notes)
    blocking = paint(f"{count(blocked, 'error')}: this plan cannot be run", "red", bold=True)
    return [*lines, "", blocking if blocked else _ending(plan, paint)]


def _ending(plan: Plan, paint: Paint) -> str:
    letters = plan.run_id.removeprefix(f"{plan.name}-")
    return f"Nothing was started. {paint('windlass run', bold=True)} does this; {letters} stands for letters of its id."


def note_lines(notes: Sequence[Note], paint: Paint) -> list[str]:
    """Returns lines with the notes on a plan and their fixes, blocking problems first."""
    ordered = sorted(notes, key=lambda note: not note.blocks)
    return [
        (paint("error:   ", "red", bold=True) if note.blocks else paint("warning: ", "yellow", bold=True))
        + note.message
        + (f"\n         {paint('→', dim=True)} {note.fix}" if note.fix else "")
        for note in ordered
    ]


def _policy(plan: Plan, paint: Paint) -> list[str]:
    policy = plan.policy
    words = [f"results {in_place(plan.output_dir)}"]
    if (folder := (plan.job.get("checkpoint") or {}).get("folder")) is not None:
        words.append(f"checkpoints below {folder}")
    limit = policy.timeout_seconds
    words.append(f"ends after {duration(limit)}" if limit is not None else "no time limit")
    restarts = policy.max_restarts
    words.append(f"at most {count(restarts, 'restart')}" if restarts else "no restart")
    words.append(f"{duration(policy.grace_seconds)} of grace at a stop")
    return [paint("  · ".join(words), dim=True)]


def _step(
    place: int, step: Step, paint: Paint, *, verbose: int, common: Mapping[str, str], has_setup: bool
) -> list[str]:
    # the summary without the command, which has its own line
    summary = step.summary.split(": ", 1)[0] if isinstance(step, NodeStep) else step.summary
    lines = []
    if isinstance(step, CodeStep) and step.added is not None:
        lines = _code(step, step.added, paint, verbose=verbose)
    if isinstance(step, NetworkStep):
        lines = _network(step, paint, verbose=verbose)
    if isinstance(step, NodeStep):
        lines = _node(step.spec, paint, verbose=verbose, common=common, has_setup=has_setup)
    return [f"{paint(f'{place}.', bold=True)} {summary}", *(f"   {line}" for line in lines)]


def _node(spec: NodeSpec, paint: Paint, *, verbose: int, common: Mapping[str, str], has_setup: bool) -> list[str]:
    """Returns lines with the folder, the commands and the variables of a node."""
    rows = [[paint("in", dim=True), tilde(spec.cwd)]]
    if has_setup and (setup := spec.setup.strip()):
        lines_of_setup = setup.count("\n") + 1
        is_short = verbose or lines_of_setup == 1
        shown = setup if is_short else f"{count(lines_of_setup, 'line')} of bash, before the ranks: windlass plan -v"
        rows.append([paint("setup", dim=True), shown])
    by_argv: dict[tuple[str, ...], list[int]] = {}
    for rank in spec.ranks:
        by_argv.setdefault(rank.argv, []).append(rank.rank)
    rows += [[paint(ranks_named(numbers), dim=True), shlex.join(argv)] for argv, numbers in by_argv.items()]
    if spec.resume is not None:
        later = f"… {shlex.join(spec.resume.words)}, once there is {spec.resume.find}"
        rows.append([paint("later", dim=True), later])
    lines = table(rows)
    if verbose:
        lines += _environment({name: value for name, value in spec.env.items() if name not in common}, paint)
        if spec.known_at_start:
            lines.append(f"{paint('set when it starts', dim=True)}  {' '.join(spec.known_at_start)}")
        for rank in spec.ranks:
            words = " ".join(f"{name}={value}" for name, value in rank.env.items())
            lines.append(f"{paint(ranks_named([rank.rank]), dim=True)}  {words}")
    return lines


def _code(step: CodeStep, added: Added, paint: Paint, *, verbose: int) -> list[str]:
    """Returns lines with the uploaded files and their sizes, and the rules that exclude files."""
    files = step.files
    total = f"{count(len(files), 'file')}, {size(step.unpacked_bytes)}"
    ours = f"{count(added.files, 'file')} of Windlass, {size(added.bytes)}"
    rows = [
        ["from", tilde(step.folder)],
        ["size", f"{total}, and {ours}: {size(step.bytes)} compressed"],
        ["largest", _sized(sorted(((one.bytes, one.name) for one in files), reverse=True))],
        ["folders", _sized(_folders(files))],
    ]
    rules = step.left_out
    shown = rules if verbose else rules[:RULES_SHOWN]
    words = [f"{one.entries:,} by {one.source} {one.pattern}" for one in shown]
    words += [f"{count(len(rules) - len(shown), 'rule')} more"] if len(rules) > len(shown) else []
    rows += [["left out" if not place else "", visible(line)] for place, line in enumerate(words)]
    if verbose:
        rows += [
            ["files" if not place else "", f"{visible(one.name)} ({size(one.bytes)})"]
            for place, one in enumerate(files)
        ]
    return table([[paint(label, dim=True), text] for label, text in rows if text])


def _folders(files: Sequence[SentFile]) -> list[tuple[int, str]]:
    """Returns the bytes and the name of each top-level folder, the largest first."""
    found: Counter[str] = Counter()
    for one in files:
        top, slash, _ = one.name.partition("/")
        found[top + slash] += one.bytes if slash else 0
    return sorted(((num_bytes, name) for name, num_bytes in found.items() if name.endswith("/")), reverse=True)


def _sized(largest: Sequence[tuple[int, str]]) -> str:
    return ", ".join(f"{visible(name)} ({size(num_bytes)})" for num_bytes, name in largest[:LARGEST_SHOWN])


def _network(step: NetworkStep, paint: Paint, *, verbose: int) -> list[str]:
    """Returns lines with the address of each node, and the commands that create and remove the network."""
    nodes = step.nodes if verbose else step.nodes[:NODES_SHOWN]
    lines = table([[paint(node.host, dim=True), node.address, node.namespace] for node in nodes])
    commands = [shlex.join(argv) for argv in (*step.make, *step.remove)]
    if verbose:
        return [*lines, *commands]
    return [
        *lines,
        paint(f"{count(len(commands), 'command')} of ip and tc make and remove it: windlass plan -v", dim=True),
    ]


def _common_environment(plan: Plan) -> dict[str, str]:
    """Returns the variables that are equal on all nodes."""
    found: dict[str, str] | None = None
    for step in plan.every(NodeStep):
        pairs = step.spec.env.items() if found is None else found.items() & step.spec.env.items()
        found = dict(sorted(pairs))
    return found or {}


def _environment(env: Mapping[str, str], paint: Paint) -> list[str]:
    return [f"{paint(name, dim=True)}={shlex.quote(value)}" for name, value in sorted(env.items())]
