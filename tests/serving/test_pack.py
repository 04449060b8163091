"""The zip file with the model server."""

from __future__ import annotations

import ast
import io
import zipfile

from windlass.serving.pack import archive


def test_equal_content_gives_equal_bytes() -> None:
    assert archive() == archive()


def test_the_file_has_only_python_that_3_10_reads() -> None:
    with zipfile.ZipFile(io.BytesIO(archive())) as found:
        names = found.namelist()
        assert {name.split("/")[0] for name in names} == {"click", "h11", "typing_extensions.py", "uvicorn", "windlass"}
        assert {name.split("/")[1] for name in names if name.startswith("windlass/")} == {"__init__.py", "serving"}
        for name in names:
            if name.startswith("windlass/"):
                ast.parse(found.read(name), name, feature_version=(3, 10))


def test_it_fits_into_a_secret_of_kubernetes() -> None:
    assert len(archive()) < 600_000
