"""Annotations of Pascal VOC: an XML file for each image with its size and its boxes."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from windlass.errors import StorageError

MAX_BYTES: Final = 1 << 24


class Box(NamedTuple):
    """An object of an image, in pixels counted from 1; the last ones belong to it."""

    kind: str
    xmin: float
    ymin: float
    xmax: float
    ymax: float


class Annotation(NamedTuple):
    """What an image shows."""

    width: int
    """Of the image, in pixels."""
    height: int
    boxes: tuple[Box, ...]


def read(name: str, data: bytes) -> Annotation:
    """Read an annotation. Raises StorageError where it is none, and where it declares a document type or entities."""
    try:
        root = _tree(name, data)
        if root.tag != "annotation":
            raise ValueError(f"its element is {root.tag[:80]}, not annotation")
        width, height = (int(_number(root, f"size/{one}")) for one in ("width", "height"))
        if width < 1 or height < 1:
            raise ValueError(f"its image has the size {width} × {height}")
        return Annotation(width, height, tuple(_box(one) for one in root.iter("object")))
    except (expat.ExpatError, ValueError, AssertionError) as error:
        raise StorageError(f"{name} is no annotation of Pascal VOC: {error}") from error


def _tree(name: str, data: bytes) -> Element:
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has {len(data):,} bytes")

    def refuse(*_declaration: Any) -> None:
        raise StorageError(f"{name} is refused: it declares a document type, which may have entities")

    tree, parser = TreeBuilder(), expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.StartElementHandler = tree.start
    parser.EndElementHandler = tree.end
    parser.CharacterDataHandler = tree.data
    parser.Parse(data, True)
    return tree.close()


def _box(found: Element) -> Box:
    kind = (found.findtext("name") or "").strip()
    if not kind:
        raise ValueError("an object has no name")
    return Box(kind, *(_number(found, f"bndbox/{one}") for one in ("xmin", "ymin", "xmax", "ymax")))


def _number(found: Element, path: str) -> float:
    text = (found.findtext(path) or "").strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{path} is {text[:40]!r}")
    return value
