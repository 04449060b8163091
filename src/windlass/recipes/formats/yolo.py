"""Labels of YOLO: a text file beside each image, with a line for each box."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windlass.recipes.formats.voc import Annotation


def label_lines(found: Annotation, class_number: int) -> list[str]:
    """`CLASS X Y WIDTH HEIGHT` for each box: its centre and size in parts of the image, as YOLOv5 reads them.

    All boxes get the same class. They are cut at the edges of the image; those without any area in it are left out.
    """
    lines = []
    for box in found.boxes:
        left, right = _span(box.xmin, box.xmax, found.width)
        top, bottom = _span(box.ymin, box.ymax, found.height)
        if right > left and bottom > top:
            numbers = (left + right) / 2, (top + bottom) / 2, right - left, bottom - top
            lines.append(" ".join([str(class_number), *(f"{one:.6f}" for one in numbers)]))
    return lines


def data_yaml(splits: Mapping[str, str], classes: Sequence[str]) -> str:
    """The file that names the folders of images and the classes. Its paths are relative to its own folder."""
    folders = [f"{split}: {folder}" for split, folder in splits.items()]
    names = [f"  {number}: {name}" for number, name in enumerate(classes)]
    return "\n".join([*folders, f"nc: {len(classes)}", "names:", *names]) + "\n"


def _span(first: float, last: float, size: int) -> tuple[float, float]:
    """From a first to a last pixel, counted from 1, in parts of the size."""
    return max(0.0, first - 1) / size, min(float(size), last) / size
