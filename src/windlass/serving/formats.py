"""Decodes request bodies (JSON, NumPy, CSV, images) to values, and encodes values as response bodies."""

from __future__ import annotations

import csv
import io
import json
import math
import zipfile
from typing import Any

JSON, CSV, NPY, NPZ = "application/json", "text/csv", "application/x-npy", "application/x-npz"
IMAGE, BYTES = "application/x-image", "application/octet-stream"
UTF8_TYPES = (JSON, CSV)
MAX_UNPACKED_BYTES = 256 << 20
"""Maximum size of all arrays in an npz file after decompression, in bytes."""
MAX_EMPTY_SIZE = 1 << 20
"""Maximum product of the nonzero dimensions of an empty array. An array of shape (10**12, 0) has no data, but would
take terabytes as nested lists."""


class RequestError(Exception):
    """A request that the model cannot answer: `status` is the HTTP status, the message is the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def decode(body: bytes, content_type: str) -> Any:
    """Returns the value of a request body: any JSON value, an array (npy), a dict of arrays (npz), a list of rows with
    numbers and strings (CSV), or the bytes themselves (images and octet-stream). Raises RequestError.
    """
    if content_type in (IMAGE, BYTES) or content_type.startswith("image/"):
        return body
    decoder = {JSON: json_value, CSV: rows, NPY: array, NPZ: arrays}.get(content_type)
    if decoder is None:
        known = ", ".join((JSON, NPY, NPZ, CSV, IMAGE, BYTES))
        raise RequestError(415, f"Content-Type {content_type} is not supported; send one of {known}")
    return decoder(body)


def json_value(body: bytes) -> Any:
    """Returns the value of a JSON text. Raises RequestError."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is not JSON: {error}") from error


def rows(body: bytes) -> list[list[float | str]]:
    """Returns the rows of a CSV text. Fields that are numbers become floats. Raises RequestError."""
    try:
        return [[_number(field) for field in row] for row in csv.reader(io.StringIO(text(body))) if row]
    except csv.Error as error:
        raise RequestError(400, f"the body is not CSV: {error}") from error


def text(body: bytes) -> str:
    """Returns a body as text. Raises RequestError unless it is UTF-8."""
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(400, f"the body is not UTF-8: {error}") from error


def _number(field: str) -> float | str:
    try:
        return float(field)
    except ValueError:
        return field


def array(body: bytes) -> Any:
    """Returns the array of an npy file. Raises RequestError, also for pickled objects and for a header that claims
    another size than the file has: NumPy would allocate the claimed size first.
    """
    from numpy.lib import format as npy

    stream = io.BytesIO(body)
    try:
        version = npy.read_magic(stream)
        read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, _, dtype = read_header(stream)
        num_bytes = dtype.itemsize * math.prod(shape)
        if dtype.hasobject:
            raise ValueError("it has pickled objects, which are refused")
        if dtype.itemsize == 0 or min(shape, default=0) < 0 or num_bytes != len(body) - stream.tell():
            raise ValueError("its header does not match its size")
        if num_bytes == 0 and math.prod(length for length in shape if length) > MAX_EMPTY_SIZE:
            raise ValueError("it has no numbers, but a huge shape")
        stream.seek(0)
        return npy.read_array(stream, allow_pickle=False)
    except (ValueError, TypeError, KeyError, EOFError, RecursionError, MemoryError, SyntaxError) as error:
        raise RequestError(400, f"the body is not an npy file: {error}") from error


def checked_zip(body: bytes) -> zipfile.ZipFile:
    """Opens an npz file. Raises RequestError for zip bombs and unusual compression.

    Only declared sizes are checked here. Callers must pass the declared size to `read`: without a size, zipfile
    decompresses the whole member before it truncates the data.
    """
    try:
        found = zipfile.ZipFile(io.BytesIO(body))
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        raise RequestError(400, f"the body is not an npz file: {error}") from error
    members = found.infolist()
    if sum(member.file_size for member in members) > MAX_UNPACKED_BYTES:
        raise RequestError(413, f"the npz file has more than {MAX_UNPACKED_BYTES >> 20} MiB when it is decompressed")
    if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
        raise RequestError(400, "the npz file uses another compression than NumPy does")
    return found


def arrays(body: bytes) -> dict[str, Any]:
    """Returns the arrays of an npz file by name. Raises RequestError."""
    import zlib

    with checked_zip(body) as found:
        try:
            contents = {}
            for member in found.infolist():
                with found.open(member) as file:
                    contents[member.filename.removesuffix(".npy")] = array(file.read(member.file_size))
            return contents
        except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, NotImplementedError, OSError) as error:
            raise RequestError(400, f"the body is not an npz file: {error}") from error


# -- answers ----------------------------------------------------------------------------------------------------------


def negotiate(accept: str) -> str:
    """Returns the media type of the response: whichever of JSON, npy and CSV the Accept header prefers, or JSON
    without a preference. Raises RequestError with 406.
    """
    best, best_quality = "", 0.0
    for part in accept.split(","):
        name, _, parameters = part.partition(";")
        name = name.strip().lower()
        found = {"": JSON, "*/*": JSON, "application/*": JSON, "text/*": CSV}.get(name, name)
        quality = _quality(parameters)
        if found in (JSON, NPY, CSV) and quality > best_quality:
            best, best_quality = found, quality
    if not best:
        raise RequestError(406, f"Accept {accept} is not supported; ask for one of {JSON}, {NPY}, {CSV}")
    return best


def _quality(parameters: str) -> float:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            quality = _number(value.strip())
            return quality if isinstance(quality, float) else 0.0
    return 1.0


def encode(value: Any, content_type: str) -> bytes:
    """Returns a value as JSON, npy or CSV. Arrays and tensors become lists in JSON. Raises TypeError and ValueError
    for values that the format cannot express, for example NaN in JSON.
    """
    if content_type == JSON:
        return json.dumps(value, default=as_list, allow_nan=False).encode()
    return as_npy(value) if content_type == NPY else as_csv(value).encode()


def as_list(value: Any) -> Any:
    """Returns an array or a tensor as nested lists. Raises TypeError for other values."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__} cannot be written as JSON")


def as_npy(value: Any) -> bytes:
    """Returns an array as an npy file."""
    import numpy

    stream = io.BytesIO()
    numpy.save(stream, _as_array(value), allow_pickle=False)
    return stream.getvalue()


def as_csv(value: Any) -> str:
    """Returns an array of at most two dimensions as CSV."""
    import numpy

    stream = io.StringIO()
    numpy.savetxt(stream, numpy.atleast_1d(_as_array(value)), delimiter=",", fmt="%s")
    return stream.getvalue()


def _as_array(value: Any) -> Any:
    import numpy

    return numpy.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
