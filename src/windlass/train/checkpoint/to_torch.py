"""Turns a safetensors file into one that `torch.load(path, weights_only=True)` reads: names to tensors.

`python -m windlass.train.checkpoint.to_torch IN OUT` is called by `windlass checkpoints export`, with the interpreter
of the job, since the command line itself has no torch. It needs torch alone, not the safetensors package.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from pathlib import Path
from typing import Any

DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "C64": "complex64", "C128": "complex128", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip
"""What safetensors calls torch's types."""


def read_tensors(path: str) -> dict[str, Any]:
    """The tensors of a safetensors file, in its order. Raises OSError, ValueError for what is none."""
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # private pages: torch wants to be able to write
    length = int.from_bytes(data[:8], "little")
    if length > len(data) - 8:
        raise ValueError(f"{path} is no safetensors file")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    in_order = sorted(header.items(), key=lambda item: item[1]["data_offsets"][0])
    return {name: _tensor(data, 8 + length, entry) for name, entry in in_order}


def _tensor(data: mmap.mmap, base: int, entry: dict[str, Any]) -> Any:
    import torch

    if entry["dtype"] not in DTYPES:
        raise ValueError(f"this version of Windlass does not know the type {entry['dtype']}")
    dtype = getattr(torch, DTYPES[entry["dtype"]])
    begin, end = entry["data_offsets"]
    if begin == end:
        return torch.empty(entry["shape"], dtype=dtype)
    # Cloned: what is saved is the storage behind a tensor, and here that is the whole file.
    flat = torch.frombuffer(data, dtype=torch.uint8, count=end - begin, offset=base + begin).clone()
    return flat.view(dtype).reshape(entry["shape"])


def main(argv: list[str]) -> int:
    """`IN OUT`: OUT is there whole, or as it was before."""
    import torch

    source, target = argv
    partial = Path(f"{target}.{os.getpid()}.partial")
    try:
        torch.save(read_tensors(source), partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
