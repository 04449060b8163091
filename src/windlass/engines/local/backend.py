"""Backend of this machine: reserves ports, creates networks, composes node specs and starts node workers."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import windlass.worker
from windlass.compat import override
from windlass.engines import netns, ports
from windlass.engines.local.admission import Admission, UpdateStatus
from windlass.engines.local.attempt import LocalAttempt, LocalNode
from windlass.engines.local.changed_code import changed_code
from windlass.engines.local.transfer import data_staging, outputs_uploads
from windlass.engines.local.warm_pool import Refused, WarmPool
from windlass.plan.compose import AttemptFacts, NodeTemplate, Rendezvous, compose
from windlass.plan.environment import consecutive_ports
from windlass.plan.plan import Plan
from windlass.plan.steps import FolderStep, NetworkStep, QueueStep, StageStep, UploadStep
from windlass.runs.clock import Clock
from windlass.runs.events import NetworkCreated, NodeAddress, Warned
from windlass.runs.private import service_folder
from windlass.runs.stop_request import read_stop_request
from windlass.supervise.backend import Backend
from windlass.supervise.recorder import Recorder
from windlass.worker.devices import VISIBLE
from windlass.worker.process import is_locked
from windlass.worker.protocol import NodeSpec

WORKER: Final = Path(windlass.worker.__file__).with_name("run.py")
IMPORTS: Final = "PYTHONPATH"
MASTER_ADDR: Final = "127.0.0.1"
FRESH_SECONDS: Final = 5.0
"""Seconds after the submission in which a first attempt runs the submitted code, so that the code is not compared."""


class LocalBackend(Backend):
    """Backend of one run on this machine. The run's lock is local, so no other supervisor can acquire the run."""

    def __init__(self, plan: Plan, run_dir: Path, update_status: UpdateStatus = lambda _store, _run_id: None) -> None:
        self._plan = plan
        self._run_dir = run_dir
        home = run_dir.parent.parent
        self._staging = data_staging(plan.every(StageStep), home)
        self._upload, self._uploads = outputs_uploads(plan.first(UploadStep), home)
        self.uploads_outputs = self._upload.is_wanted
        self.admission = Admission(plan, home, update_status)

    @override
    def admit(self, record: Recorder, clock: Clock) -> bool:
        return self.admission.turn(record, clock)

    @override
    def close(self) -> None:
        self.admission.slots.close()

    @override
    def stage(self, record: Recorder, clock: Clock) -> bool:
        return self._staging.turn(record, clock)

    @override
    def upload_at_checkpoint(self, record: Recorder, clock: Clock) -> None:
        self._uploads.turn(record, clock)

    @override
    def upload(self, record: Recorder, clock: Clock) -> bool:
        self._uploads.end()
        return self._upload.turn(record, clock)

    @override
    def start(self, record: Recorder, folder: Path, number: int, members: Sequence[int], clock: Clock) -> LocalAttempt:
        for made in self._plan.every(FolderStep):
            Path(made.path).mkdir(parents=True, exist_ok=True)
            # A later attempt finds the folder created. If it is unreadable, the ranks themselves retry.
            with contextlib.suppress(*((OSError,) if number > 1 else ())):
                Path(made.checkpoints).mkdir(parents=True, exist_ok=True)
        fixed = self._plan.policy.port
        with contextlib.ExitStack() as own:
            claims = [] if fixed is None else [own.enter_context(ports.claim(fixed))]
            master = own.enter_context(contextlib.closing(ports.reserve(fixed)))
            addresses = self._make_networks(record, folder.parent)
            here = [addresses[node] for node in members] if addresses else [MASTER_ADDR] * len(members)
            port = netns.rendezvous_port(number) if addresses else master.getsockname()[1]
            is_held = not addresses and self._plan.nodes.launcher != "plain"
            if not is_held:
                # The port is freed, because a program without a launcher may bind it without SO_REUSEADDR.
                master.close()
            rank_ports = consecutive_ports(self._plan.nodes.launcher, len(members), self._plan.procs_per_node, number)
            of_ranks: list[socket.socket] = []
            if not addresses:  # ranks that share one address need different ports
                of_ranks = [own.enter_context(contextlib.closing(ports.reserve(None))) for _ in rank_ports]
                rank_ports = tuple(one.getsockname()[1] for one in of_ranks)
            facts = AttemptFacts(
                number=number,
                folder=str(folder),
                rendezvous=Rendezvous(here[0], port, tuple(here), rank_ports),
                since=first_start(folder.parent),
                reserved_port=port if is_held else None,
                continuation=record.history.continuation(record.status),
            )
            parts = self._plan.nodes.defaults.get(IMPORTS)
            specs = [_importing(spec, parts, os.environ) for spec in compose(self.nodes(), members, facts)]
            reserved = [*claims, *([master] if is_held else []), *of_ranks]
            pool = WarmPool(record.writer.store.home)
            attempt = start_attempt(folder, specs, reserved, clock.fileno(), pool, self.admission.slots.lock)
        is_fresh = number == 1 and clock.time() - record.status.times.created_at < FRESH_SECONDS
        if not is_fresh and not record.status.attempts[-1].is_resume:  # `resume` itself lists changed files
            attempt.warnings += tuple(changed_code(self._plan, self._run_dir, os.environ))
        return attempt

    def nodes(self) -> NodeTemplate:
        """Returns the node template, with the GPUs of the run's slots if slots are GPUs."""
        nodes, slots = self._plan.nodes, self.admission.numbers
        if not slots or not self._plan.only(QueueStep).gpus:
            return nodes
        each = len(slots) // self._plan.num_nodes
        shares = {str(node): slots[node * each : (node + 1) * each] for node in range(self._plan.num_nodes)}
        return nodes.replace(node_env={node: {VISIBLE: ",".join(map(str, own))} for node, own in shares.items()})

    def adopt(self, folder: Path, number: int, members: Sequence[int], clock: Clock) -> LocalAttempt:
        """Returns the attempt that another supervisor has started. Its nodes write to the previous supervisor's pipe,
        and cannot wake this one.
        """
        self.admission.slots.keep()
        return LocalAttempt.of(folder, compose(self._plan.nodes, members))

    def held_elsewhere(self) -> str:
        """Returns the original run if this run is in a copied home. Its processes belong to the original and must not
        be killed.
        """
        for path in self._run_dir.glob("attempt-*/node-*.json"):
            # Errors are ignored: the folder is missing if the home was moved, and may be unreadable if another user
            # owns it.
            with contextlib.suppress(OSError, ValueError, KeyError):
                folder = Path(json.loads(path.read_bytes())["folder"])
                if folder.parent.samefile(self._run_dir):
                    continue
                if any(map(is_locked, (f"{folder.parent}/lock", f"{folder}/{path.stem}.lock"))):
                    return f"the original in {folder.parent}, of which this is a copy"
        return ""

    def is_started(self, folder: Path) -> bool:
        """Whether any worker runs or has reported. A worker reports its start before it starts any rank."""
        nodes = LocalAttempt.of(folder, compose(self._plan.nodes, range(self._plan.num_nodes))).nodes
        return any(node.has_reported() or node.lives() for node in nodes)

    @override
    def remove(self) -> None:
        self._remove_service()

    def _remove_service(self) -> None:
        """Removes the credentials of a service; a run that is no service has none."""
        shutil.rmtree(service_folder(self._run_dir.parent.parent, self._run_dir.name), ignore_errors=True)

    @override
    def unreachable(self) -> set[int]:
        return set().union(*(netns.unplugged(network) for network in self._plan.every(NetworkStep)))

    def prepare_end(self, record: Recorder) -> None:
        """Removes the networks and the credentials of a service, and releases the slots, before the end is recorded,
        because no command cleans up an ended run.
        """
        self._staging.end()
        self._uploads.end()
        self._upload.end()
        self.admission.slots.leave()
        self._remove_service()
        for network in self._plan.every(NetworkStep):
            for refused in netns.remove(network):
                record.note(Warned(f"left behind: {refused}"))

    def _make_networks(self, record: Recorder, run_dir: Path) -> list[str]:
        """Creates the missing networks of the nodes and returns the address of each node. Raises EngineError.

        Networks outlive an attempt, so that a link that was cut stays cut in the next attempt.
        """
        addresses: list[str] = []
        for network in self._plan.every(NetworkStep):
            if netns.make(network, run_dir):
                nodes = tuple(NodeAddress.from_json(node.to_json()) for node in network.nodes)
                record.note(NetworkCreated(network.interface, network.rate, nodes))
            addresses += [node.address for node in network.nodes]
        return addresses


def _importing(spec: NodeSpec, parts: str | None, environ: Mapping[str, str]) -> NodeSpec:
    """Prepends this shell's PYTHONPATH to the spec's PYTHONPATH, if the latter is only `parts`, the folder of
    Windlass's modules.

    Plans contain no values of shell variables.
    """
    if not (of_shell := environ.get(IMPORTS)) or not parts or spec.env[IMPORTS] != parts:
        return spec
    return spec.replace(env={**spec.env, IMPORTS: f"{of_shell}:{parts}"})


# -- starting node workers ----------------------------------------------------------------------------------------


def start_attempt(
    folder: Path,
    specs: Sequence[NodeSpec],
    reserved: Sequence[socket.socket],
    wake: int,
    pool: WarmPool,
    slots: int | None = None,
) -> LocalAttempt:
    """Writes the specs and starts the workers; each writes a byte to `wake` for every report.

    `reserved` are sockets that reserve the rendezvous ports; `slots` is the locked descriptor of the run's slots, which
    every worker inherits. Workers whose spec names modules to import in advance are forked from `pool` if that is safe.
    Raises OSError, after the workers that had already started are killed.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    specs = _resumed(specs)
    attempt = LocalAttempt.of(folder, specs)
    refusals: dict[str, None] = {}
    try:
        for node, spec in zip(attempt.nodes, specs, strict=True):
            spec.write()
            # The first node inherits the sockets, which keeps the ports reserved even if the supervisor is killed.
            kept = [one.fileno() for one in reserved] if node is attempt.nodes[0] else []
            kept += [] if slots is None else [slots]
            if refused := _start_worker(node, spec, [wake, *kept], pool):
                refusals[f"cold start: {refused}"] = None
    except BaseException:
        for popen in [node.popen for node in attempt.nodes if node.popen is not None]:
            popen.kill()  # by its handle, because the failure may have prevented that the node's pid was stored
        attempt.kill()
        attempt.close()
        raise
    attempt.warnings = tuple(Warned(message) for message in refusals)
    return attempt


def first_start(run_dir: Path) -> float:
    """Returns the start time of the run's first node in Unix seconds, or the current time before any start."""
    specs = run_dir.glob("attempt-*/node-*.json")
    return min((path.stat().st_mtime for path in specs), default=time.time())


def _resumed(specs: Sequence[NodeSpec]) -> list[NodeSpec]:
    """Adds the arguments by which scripts that save their own checkpoints resume. Raises OSError."""
    if specs[0].resume is None:
        return list(specs)
    from windlass.worker import resume  # the import is late because it takes as long as all others of this process

    try:
        return resume.add_resume_arguments(specs)
    except ValueError as error:
        raise OSError(str(error)) from error
    # After an internal error, the run must end as failed and not be lost.
    except (ArithmeticError, LookupError, RuntimeError, TypeError) as error:
        raise OSError(f"checkpoint.find: internal error: {type(error).__name__}: {error}") from error


def _start_worker(node: LocalNode, spec: NodeSpec, kept: Sequence[int], pool: WarmPool) -> str:
    """Starts one worker, which inherits the descriptors `kept`. Returns why a requested warm start was impossible, or
    "".
    """
    with contextlib.ExitStack() as opened:
        lock = os.open(node.path("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        opened.callback(os.close, lock)
        out = os.open(node.path("out"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        opened.callback(os.close, out)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        answer = _fork_worker(node, spec, out, [*kept, lock], pool) if spec.warm and not pool.is_off else None
        if isinstance(answer, int):
            node.set_pid(answer)
            return ""
        # -I -S: the worker needs only the standard library, and must not import the user's packages.
        command = [spec.worker_python, "-I", "-S", str(WORKER), str(node.path("json")), str(kept[0])]
        node.popen = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, pass_fds=[*kept, lock]
        )
        node.set_pid(node.popen.pid)
        return answer.why if answer is not None else ""


def _fork_worker(node: LocalNode, spec: NodeSpec, out: int, kept: Sequence[int], pool: WarmPool) -> int | Refused:
    return pool.fork(
        python=spec.worker_python,
        modules=spec.warm,
        script=spec.script,
        spec=node.path("json"),
        env={**os.environ, **spec.env},
        output=out,
        keep=kept,
        gave_up=lambda: read_stop_request(node.folder.parent) is not None,
    )
