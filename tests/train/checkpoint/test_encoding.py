from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windlass.train.checkpoint.encoding import Decoder, Encoder


def through(value: Any, *, allow_pickle: bool = False) -> Any:
    coded = Encoder(lambda path, tensor: path, allow_pickle=allow_pickle).encode(value, "part")
    decoder = Decoder(lambda path, name: (path, name), allow_pickle=allow_pickle)
    return decoder.decode(json.loads(json.dumps(coded, allow_nan=False)), "part")


KEYS = st.one_of(st.text(), st.integers(), st.booleans(), st.none(), st.tuples(st.integers(), st.text()))
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.complex_numbers(allow_nan=False),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner), st.tuples(inner, inner), st.dictionaries(KEYS, inner), st.frozensets(KEYS), st.sets(KEYS)
    ),
    max_leaves=20,
)


def same(first: Any, second: Any) -> bool:
    """Whether two values are equal and have the same types at all levels."""
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        pairs = zip(first.items(), second.items(), strict=True)
        return len(first) == len(second) and all(same(a, b) and same(v, w) for (a, v), (b, w) in pairs)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)


@given(TREES)
def test_python_values_are_decoded_with_their_types(tree: Any) -> None:
    assert same(through(tree), tree)


@pytest.mark.parametrize(
    "value",
    [
        Counter({80: 1, 120: 2}),
        OrderedDict(b=1, a=2),
        defaultdict(dict, {1: {2: 3}}),
        bytearray(b"x"),
        -0.0,
        float("inf"),
        float("-inf"),
        {"$": "tensor", "v": "evil"},
        10**40,
        torch.Size([2, 3]),
        torch.bfloat16,
        torch.device("cuda:1"),
    ],
    ids=repr,
)
def test_values_of_library_types_are_decoded(value: Any) -> None:
    found = through(value)
    assert type(found) is type(value)
    assert found == value
    assert math.copysign(1, found) == math.copysign(1, value) if value == 0.0 and type(value) is float else True


def test_nan_is_decoded_as_nan() -> None:
    assert math.isnan(through({"loss": float("nan")})["loss"])


@pytest.mark.parametrize("dtype", ["<f8", "<f4", ">i8", "?", "<U5", "<M8[s]", "<c16"])
def test_arrays_and_scalars_of_numpy_keep_type_and_shape(dtype: str) -> None:
    array = np.zeros((2, 3), dtype=dtype)
    found = through({"array": array, "scalar": array[0, 0]})
    assert found["array"].dtype == array.dtype
    assert found["array"].shape == (2, 3)
    assert (found["array"] == array).all()
    assert type(found["scalar"]) is type(array[0, 0])
    found["array"][0, 0] = found["array"][1, 1]  # the array must be writable


def test_tensor_is_created_from_its_path_and_name() -> None:
    assert through({"a.b": [torch.ones(2)]}) == {"a.b": [(("part", "a.b", "0"), "part.a.b.0")]}


class Thing:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing)

    def __hash__(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": [1, Thing()]}, r"part\.a\.1 .*Thing"),
        ({"f": test_nan_is_decoded_as_nan}, r"part\.f .*function"),
        ({Thing(): 1}, "the key"),
        (np.array([Thing()], dtype=object), "part .*ndarray"),
        (defaultdict(lambda: 3), "part .*defaultdict"),
    ],
    ids=["inside", "function", "key", "objects", "factory"],
)
def test_unsupported_value_is_refused_with_its_path_and_a_fix(value: Any, where: str) -> None:
    with pytest.raises(TypeError, match=where) as refused:
        through(value)
    assert "allow_pickle=True" in str(refused.value)


def test_recursive_tree_is_refused() -> None:
    tree: list[Any] = []
    tree.append(tree)
    with pytest.raises(TypeError, match="holds itself"):
        through(tree)


def test_pickle_is_used_and_undone_only_where_it_was_chosen() -> None:
    coded = Encoder(lambda path, tensor: path, allow_pickle=True).encode({"thing": Thing()}, "part")
    assert Decoder(allow_pickle=True).decode(coded, "part") == {"thing": Thing()}
    with pytest.raises(ValueError, match=r"part\.thing was stored by pickle.*allow_pickle=True"):
        Decoder(allow_pickle=False).decode(coded, "part")


@pytest.mark.parametrize(
    "coded",
    [
        {"$": "eval", "v": "1"},
        {"$": "tuple", "v": 3},
        {"$": "numpy.array", "v": "", "dtype": "O", "shape": [0]},
        {"$": "torch.dtype", "v": "torch.nn"},
        {"$": "bytes", "v": "***"},
        {"$": "numpy.array", "v": ""},
        {"$": "dict", "v": [[[], 1]]},
        {"$": ["tuple"], "v": []},
        {"$": "Counter"},
    ],
    ids=str,
)
def test_invalid_encoding_is_refused(coded: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Decoder(allow_pickle=False).decode(coded, "part")
