"""Runs the `helm` program to install, upgrade and remove chart releases."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from windlass.clusters.components import die_with_parent
from windlass.clusters.components.component import COMPONENT_LABEL
from windlass.errors import EngineError, MissingExtra

HOOK_SECONDS: Final = 300
"""Time limit in seconds for a chart's hooks. Windlass, not helm, waits for readiness."""
RUN_SECONDS: Final = 420.0
INTERRUPT_SECONDS: Final = 20.0
HISTORY: Final = 5
MIN_VERSION: Final = (3, 13)
"""First helm version that can label releases."""
EVERY_STATE: Final = ("--deployed", "--failed", "--pending", "--superseded", "--uninstalling")
"""Options of `helm list` for releases in every state. Version 4 has no `--all`."""
PENDING: Final = ("pending-install", "pending-upgrade", "pending-rollback", "uninstalling")
"""Release states that a killed helm leaves behind."""


@dataclass(frozen=True, slots=True)
class Release:
    """A release as reported by `helm list`."""

    name: str
    namespace: str
    status: str
    chart: str
    """Name and version of the chart: `karpenter-1.14.1`."""

    @property
    def is_pending(self) -> bool:
        """Whether an operation on the release was interrupted or is still running."""
        return self.status in PENDING


@dataclass(frozen=True, slots=True)
class Helm:
    """The helm program, and the cluster that it connects to."""

    program: str
    kubeconfig: str
    """Kubeconfig paths, in the format of `$KUBECONFIG`."""
    context: str

    def version(self) -> tuple[int, ...]:
        """Returns the version of helm. Raises MissingExtra if helm is missing or too old, EngineError if it fails."""
        text = run_helm([self.program, "version", "--template", "{{.Version}}"], {}, 30).strip().removeprefix("v")
        found = tuple(int(part) for part in text.split("-")[0].split("+")[0].split(".") if part.isdigit())
        if found < MIN_VERSION:
            raise MissingExtra(
                f"helm {text} is too old: {'.'.join(map(str, MIN_VERSION))} or newer is needed",
                "install a newer one: https://helm.sh/docs/intro/install/",
            )
        return found

    def find(self, name: str, namespace: str, *, is_ours: bool = False) -> Release | None:
        """Returns a release in any state; `is_ours`: only if it has Windlass's label. Raises EngineError."""
        mine = ["--selector", f"{COMPONENT_LABEL}={name}"] if is_ours else []
        text = self._run(
            "list", "--namespace", namespace, *EVERY_STATE, "--filter", f"^{name}$", "--output", "json", *mine
        )
        found = [one for one in _json(text) or () if one.get("name") == name]
        if not found:
            return None
        one = found[0]
        return Release(name, namespace, str(one["status"]), str(one["chart"]))

    def upgrade(self, name: str, namespace: str, chart: Path, values: Mapping[str, Any]) -> None:
        """Installs a chart, or upgrades its release. The caller applies the chart's CRDs, because helm never upgrades
        them.

        Raises EngineError.
        """
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(values, file)
            file.flush()
            self._run(
                "upgrade", name, str(chart), "--install", "--namespace", namespace, "--skip-crds",
                "--values", file.name, "--timeout", f"{HOOK_SECONDS}s", "--history-max", str(HISTORY),
                "--labels", f"{COMPONENT_LABEL}={name}",
            )  # fmt: skip

    def recover(self, release: Release) -> None:
        """Undoes the operation of a killed helm: rolls back to the previous revision, or uninstalls an unfinished first
        one.

        Raises EngineError.
        """
        if release.status in ("pending-upgrade", "pending-rollback"):
            self._run("rollback", release.name, "--namespace", release.namespace, "--timeout", f"{HOOK_SECONDS}s")
        else:
            self.uninstall(release.name, release.namespace)

    def uninstall(self, name: str, namespace: str) -> None:
        """Removes a release with its objects; does nothing if the release does not exist. Raises EngineError."""
        self._run("uninstall", name, "--namespace", namespace, "--ignore-not-found", "--timeout", f"{HOOK_SECONDS}s")

    def definitions(self, chart: Path) -> str:
        """Returns the YAML of the chart's `crds` folder. Raises EngineError."""
        return self._run("show", "crds", str(chart))

    def _run(self, *args: str) -> str:
        command = [self.program, "--kube-context", self.context, *args]
        return run_helm(command, {"KUBECONFIG": self.kubeconfig}, RUN_SECONDS)


def run_helm(command: Sequence[str], environ: Mapping[str, str], seconds: float) -> str:
    """Runs helm as a child that is killed if this process exits, and returns its output. Raises EngineError,
    MissingExtra.
    """
    if shutil.which(command[0]) is None:
        raise MissingExtra(
            "helm is needed to install charts, and is not in PATH", "install it: https://helm.sh/docs/intro/install/"
        )
    guarded = [sys.executable, "-I", die_with_parent.__file__, *command]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            guarded, stdin=subprocess.PIPE, stdout=output, stderr=complaints, env={**os.environ, **environ}
        )
        try:
            code = process.wait(seconds)
        except KeyboardInterrupt:
            # Ctrl-C also reached helm, which now records the interrupted operation
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(INTERRUPT_SECONDS)
            raise
        except subprocess.TimeoutExpired:
            raise EngineError(
                f"helm {_verb(command)} took more than {seconds:.0f} s", "windlass cluster status"
            ) from None
        finally:
            if process.stdin is not None:
                process.stdin.close()
            process.wait()
        output.seek(0)
        complaints.seek(0)
        text, said = output.read().decode("utf-8", "replace"), complaints.read().decode("utf-8", "replace")
    if code:
        last = " ".join(said.strip().split())[-600:] or f"exit code {code}"
        raise EngineError(f"helm {_verb(command)}: {last}")
    return text


def _verb(command: Sequence[str]) -> str:
    """Returns the helm operation for messages: `upgrade karpenter`."""
    words = [word for word in command[1:] if not word.startswith("-")]
    skipped = 1 if "--kube-context" in command else 0
    return " ".join(words[skipped : skipped + 2])


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise EngineError(f"helm returned something that is not JSON: {text[:200]}") from error
