"""Sources of charts and manifests: the network, or a local folder."""

from __future__ import annotations

import re
import shutil
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final, Protocol

from windlass.clusters.components.component import Chart, Manifests
from windlass.clusters.components.helm import run_helm
from windlass.errors import EngineError

MAX_BYTES: Final = 32 * 2**20
"""Maximum size of a manifest file; the largest known one is 2 MB."""
FETCH_SECONDS: Final = 60.0
PULL_SECONDS: Final = 180.0


class ChartSource(Protocol):
    """Source of charts and manifests: the only part of an installation that may use the network."""

    def chart(self, chart: Chart) -> Path:
        """Returns the local path of a chart: a folder or an archive. Raises EngineError, MissingExtra."""
        ...

    def manifests(self, name: str, manifests: Manifests) -> str:
        """Returns the manifests of the named component as YAML. Raises EngineError."""
        ...


class FolderSource:
    """Charts and manifests in a local folder, for clusters without Internet access and for tests.

    A chart is `NAME/`, `NAME-VERSION/` or `NAME-VERSION.tgz`; manifests are `COMPONENT.yaml`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def chart(self, chart: Chart) -> Path:
        """Returns the path of the chart's archive or unpacked folder."""
        names = (f"{chart.name}-{chart.version}.tgz", f"{chart.name}-{chart.version}", chart.name)
        found = next((path for name in names if (path := self._folder / name).exists()), None)
        if found is None:
            raise EngineError(
                f"{self._folder} has no chart {chart.name} {chart.version}",
                f"put it there: helm pull {_reference(chart)} --version {chart.version}",
            )
        return found

    def manifests(self, name: str, manifests: Manifests) -> str:
        """Returns the text of the component's manifest file."""
        path = self._folder / f"{name}.yaml"
        try:
            return path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise EngineError(f"{path} cannot be read: {error}", f"put there: {manifests.url}") from error


class NetworkSource:
    """Charts and manifests from the repositories of the projects; downloads are cached in a folder."""

    def __init__(self, cache: Path, helm: str = "helm") -> None:
        self._cache = cache
        self._helm = helm

    def chart(self, chart: Chart) -> Path:
        """Downloads the chart with `helm pull` and returns the path of its archive."""
        kept = self._cache / "charts" / f"{_safe(chart.name)}-{_safe(chart.version)}.tgz"
        if kept.exists():
            return kept
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            run_helm([self._helm, "pull", _reference(chart), *_repository(chart), "--version", chart.version,
                      "--destination", folder], {}, PULL_SECONDS)  # fmt: skip
            archives = list(Path(folder).glob("*.tgz"))
            if len(archives) != 1:
                raise EngineError(f"helm pull {_reference(chart)} made {len(archives)} archives, not one")
            shutil.move(archives[0], kept)
        return kept

    def manifests(self, name: str, manifests: Manifests) -> str:
        """Downloads the manifest file over https; other URLs are refused."""
        url, hint = manifests.url, "check the Internet access, or copy the file into a folder and use --from FOLDER"
        if not url.startswith("https://"):
            raise EngineError(f"manifests of {name}: {url} is not https")
        kept = self._cache / "manifests" / f"{_safe(url)}.yaml"
        if kept.exists():
            return kept.read_text("utf-8")
        try:
            with urllib.request.urlopen(url, timeout=FETCH_SECONDS) as response:
                data: bytes = response.read(MAX_BYTES + 1)
        except (OSError, urllib.error.URLError, ValueError) as error:
            raise EngineError(f"manifests of {name}: {url}: {error}", hint) from error
        if len(data) > MAX_BYTES:
            raise EngineError(f"manifests of {name}: {url} has more than {MAX_BYTES} bytes")
        kept.parent.mkdir(parents=True, exist_ok=True)
        unfinished = kept.with_suffix(".part")
        unfinished.write_bytes(data)
        unfinished.replace(kept)
        return data.decode("utf-8", "strict")


def _reference(chart: Chart) -> str:
    """Returns the chart argument of `helm pull`: a URL for OCI, the plain name for an HTTP repository."""
    return f"{chart.repository}/{chart.name}" if chart.repository.startswith("oci://") else chart.name


def _repository(chart: Chart) -> list[str]:
    return [] if chart.repository.startswith("oci://") else ["--repo", chart.repository]


def _safe(text: str) -> str:
    """Converts text to a safe file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)
