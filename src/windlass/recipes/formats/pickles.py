"""Reads the pickles of CIFAR-10 as data: nothing of a pickle is called or imported.

Arrays become `Array`, by stand-ins for the three names of numpy that such a pickle has. All opcodes are read before the
first is executed, so that one with another opcode or name, or with a memo that would fill the memory, is refused.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Iterator
from typing import Any, Final

from windlass.errors import StorageError

MAX_MEMO: Final = 1 << 20
OPCODES: Final = frozenset((
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE",
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "LIST", "APPEND", "APPENDS",
    "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE",
    "GET", "BINGET", "LONG_BINGET", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD",
))  # fmt: skip


class Array:
    """An array of unsigned bytes of a pickle."""

    shape: tuple[int, ...] = ()
    data: bytes = b""
    """Its values, row by row."""

    def __setstate__(self, state: Any) -> None:
        """The state of a numpy array: version, shape, type, order, values. Raises UnpicklingError."""
        match state:
            case (_, tuple(shape), Type(name="u1"), False | 0, bytes(data)) if all(
                isinstance(one, int) and one >= 0 for one in shape
            ):
                self.shape, self.data = shape, data
            case _:
                raise pickle.UnpicklingError("an array that is not of unsigned bytes, row by row")


class Type:
    """A type of values of a pickle."""

    def __init__(self, name: Any = "", *_rest: Any) -> None:
        self.name = name.decode("ascii", "replace") if isinstance(name, bytes) else name

    def __setstate__(self, _state: Any) -> None:
        """Byte order and alignment: unsigned bytes have none."""


def _array(*_arguments: Any) -> Array:
    return Array()


class _Name:
    """A stand-in for a class that a pickle names only as an argument."""


STAND_INS: Final[dict[tuple[str, str], Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _array,
    ("numpy._core.multiarray", "_reconstruct"): _array,
    ("numpy", "ndarray"): _Name,
    ("numpy", "dtype"): Type,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """See Unpickler. Raises UnpicklingError."""
        try:
            return STAND_INS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}") from None


def read(name: str, data: bytes) -> dict[str, Any]:
    """The dictionary of a pickle; keys as text, strings of Python 2 as bytes. Raises StorageError."""
    try:
        for why in _problems(data):
            raise pickle.UnpicklingError(why)
        found = _Unpickler(io.BytesIO(data), encoding="bytes").load()
        if not isinstance(found, dict):
            raise pickle.UnpicklingError("it has no dictionary")
        return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in found.items()}
    except RecursionError as error:
        raise StorageError(f"{name} is refused: it is nested too deeply") from error
    except Exception as error:  # an unpickler that is given anything may raise anything
        raise StorageError(f"{name} is refused: {error}") from error


def _problems(data: bytes) -> Iterator[str]:
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name not in OPCODES:
            yield f"it has the opcode {opcode.name}"
        elif opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > MAX_MEMO:
            yield f"it has a memo of {argument} entries"
