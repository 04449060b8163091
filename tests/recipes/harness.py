"""`python -m tests.recipes.harness`: fetches of a small set in processes that are ended where the test says.

main LINE                       the command `windlass`, with the recipes of the small sets
steps FOLDER MIRROR             FOLDER/0, FOLDER/1, …: each fetched by a process that ends at that step on the disk
"""

from __future__ import annotations

import os
import sys
from itertools import count
from pathlib import Path

from tests.recipes import tiny

from windlass.recipes.fetch import Fetch
from windlass.recipes.registry import RECIPES

STEPS = frozenset(("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "open"))
NAME = "cifar10"
LAYOUTS = ("raw", "torchvision")


def fetch(folder: Path, mirror: str, layouts: tuple[str, ...] = LAYOUTS) -> Fetch:
    """A fetch of two layouts."""
    return Fetch(RECIPES[NAME], layouts, folder, mirror)


def ended_at(step: int, folder: Path, mirror: str) -> bool:
    """Whether a fetch was ended at this step; else it had fewer."""
    child = os.fork()
    if child == 0:
        left = iter(range(step))

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            if event in STEPS and str(arguments[0]).startswith(str(folder)) and next(left, None) is None:
                os._exit(9)

        sys.addaudithook(hook)
        fetch(folder, mirror).run()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def main(words: list[str]) -> None:
    """See above."""
    RECIPES.update({name: tiny.recipe_for(name, make()) for name, make in tiny.SETS.items()})
    if words[0] == "steps":
        folder, mirror = words[1:]
        print(next(step for step in count() if not ended_at(step, Path(folder) / str(step), mirror)))
        return
    from windlass.cli.main import main as windlass

    if size := os.environ.get("TINY_LARGE"):  # a file that takes a while
        files = {**tiny.coco2017(), "val2017.zip": tiny.large_zip(int(size))}
        RECIPES["coco2017"] = tiny.recipe_for("coco2017", files)
    windlass(words[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
