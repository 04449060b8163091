"""Bodies to values and back; hostile bodies are refused with a reason."""

from __future__ import annotations

import io
import json
import pickle
import tracemalloc
import zipfile
from typing import Any

import numpy as np
import pytest

from windlass.serving import formats
from windlass.serving.formats import BYTES, CSV, IMAGE, JSON, NPY, NPZ, RequestError


def npy(value: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, value, **options)
    return stream.getvalue()


def npz(compression: int = zipfile.ZIP_DEFLATED, **members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as made:
        for name, content in members.items():
            made.writestr(f"{name}.npy", content)
    return stream.getvalue()


def header(shape: str, descr: str = "'<f8'", version: bytes = b"\x01\x00") -> bytes:
    """An npy file without data."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text


def test_values_are_read_by_their_content_type() -> None:
    array = np.arange(6, dtype="int16").reshape(2, 3)
    assert formats.decode(b'{"a": [1, 2.5, null]}', JSON) == {"a": [1, 2.5, None]}
    assert formats.decode("﻿1,2.5,ä\n\n-3,,x\n".encode(), CSV) == [[1.0, 2.5, "ä"], [-3.0, "", "x"]]
    found = formats.decode(npy(array), NPY)
    assert found.dtype == array.dtype
    assert (found == array).all()
    both = formats.decode(npz(one=npy(array), two=npy(np.float32(1.5))), NPZ)
    assert (both["one"] == array).all()
    assert both["two"] == 1.5
    assert [formats.decode(b"\xff\xd8", kind) for kind in (IMAGE, "image/png", BYTES)] == [b"\xff\xd8"] * 3


@pytest.mark.parametrize(
    ("body", "kind", "status", "reason"),
    [
        (b"{", JSON, 400, "not JSON"),
        (b"\xff\xfe\xff", JSON, 400, "not JSON"),
        (b"[" * 200_000, JSON, 400, "not JSON"),
        (b"9" * 5_000, JSON, 400, "not JSON"),
        (b"\xff1,2", CSV, 400, "not UTF-8"),
        (b'"' + b"x" * 200_000 + b'"', CSV, 400, "not CSV"),
        (b"<a/>", "text/xml", 415, "text/xml is not supported"),
        (b"a=1", "application/x-www-form-urlencoded", 415, "send one of application/json"),
        (b"", NPY, 400, "not an npy file"),
        (b"\x93NUMPY\x01\x00\xff\xff{", NPY, 400, "not an npy file"),
        (header("(1000000000000,)"), NPY, 400, "header does not match"),
        (header("(-1,)") + b"12345678", NPY, 400, "header does not match"),
        (header("(1000000000000,)", "'<V0'"), NPY, 400, "header does not match"),
        (header("(1000000, 1000000, 0)"), NPY, 400, "huge shape"),
        (header("(1,)", version=b"\x03\x00") + b"12345678", NPY, 400, "not an npy file"),
        (header("__import__('os').abort()"), NPY, 400, "not an npy file"),
        (header("(2,)", "'|O'"), NPY, 400, "pickled objects"),
        (npy(np.array([{"a": 1}], dtype=object), allow_pickle=True), NPY, 400, "pickled objects"),
        (pickle.dumps({"a": 1}), NPY, 400, "not an npy file"),
        (npy(np.arange(3.0))[:-1], NPY, 400, "header does not match"),
        (npy(np.arange(3.0)) + b"x", NPY, 400, "header does not match"),
        (b"PK\x03\x04", NPZ, 400, "not an npz file"),
        (npz(one=b"no array"), NPZ, 400, "not an npy file"),
        (npz(one=npy(np.array([None]), allow_pickle=True)), NPZ, 400, "pickled objects"),
        (npz(zipfile.ZIP_LZMA, one=npy(np.arange(3.0))), NPZ, 400, "another compression"),
        (npz(zipfile.ZIP_STORED, one=npy(np.arange(3.0))).replace(b"NUMPY", b"NUMPX"), NPZ, 400, "Bad CRC"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(body: bytes, kind: str, status: int, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as refused:
        formats.decode(body, kind)
    assert refused.value.status == status


def test_a_zip_bomb_is_refused_before_it_is_decompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = b"\0" * (1 << 20)
    bomb = npz(one=zeros, two=zeros, three=zeros)
    assert len(bomb) < 10_000
    monkeypatch.setattr(formats, "MAX_UNPACKED_BYTES", 2 << 20)
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda *_: pytest.fail("decompressed"))
    with pytest.raises(RequestError, match="more than 2 MiB") as refused:
        formats.decode(bomb, NPZ)
    assert refused.value.status == 413


def test_a_member_that_is_larger_than_it_declares_is_refused() -> None:
    honest = npz(one=npy(np.zeros(4_000_000)))
    size = (32_000_128).to_bytes(4, "little")
    assert honest.count(size) == 2
    tracemalloc.start()
    with pytest.raises(RequestError, match="not an np"):
        formats.decode(honest.replace(size, (1_000).to_bytes(4, "little")), NPZ)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", JSON),
        ("*/*", JSON),
        ("text/html, application/x-npy;q=0.8, text/csv;q=0.9", CSV),
        ("application/x-npy; q=0, application/json;q=0.1", JSON),
        ("text/*", CSV),
        ("text/csv;q=nonsense, application/x-npy", NPY),
    ],
)
def test_the_answer_has_the_form_that_accept_prefers(accept: str, form: str) -> None:
    assert formats.negotiate(accept) == form


def test_an_accept_header_without_a_known_form_is_refused() -> None:
    with pytest.raises(RequestError, match="ask for one of") as refused:
        formats.negotiate("text/html, application/json;q=0")
    assert refused.value.status == 406


def test_results_are_written_as_json_npy_and_csv() -> None:
    value = np.array([[1, 2], [3, 4]])
    assert json.loads(formats.encode({"scores": value, "best": np.float32(0.5)}, JSON)) == {
        "scores": [[1, 2], [3, 4]],
        "best": 0.5,
    }
    assert (np.load(io.BytesIO(formats.encode(value, NPY))) == value).all()
    assert formats.encode(value, CSV) == b"1,2\n3,4\n"
    assert formats.encode(7, CSV) == b"7\n"
    for unspeakable, error in ((float("nan"), ValueError), (object(), TypeError)):
        with pytest.raises(error):
            formats.encode(unspeakable, JSON)
