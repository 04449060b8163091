"""All recipes, by name."""

from __future__ import annotations

from typing import Final

from windlass.errors import UsageError, near
from windlass.recipes import cifar10, coco2017, imagenet_r50, mnist, scut_head
from windlass.recipes.recipe import Recipe

RECIPES: Final[dict[str, Recipe]] = {
    one.RECIPE.name: one.RECIPE for one in (mnist, cifar10, coco2017, imagenet_r50, scut_head)
}


def recipe_of(name: str) -> Recipe:
    """The recipe of this name. Raises UsageError."""
    if name not in RECIPES:
        hint = near(name, RECIPES) or f"known are {', '.join(RECIPES)}"
        raise UsageError(f"there is no recipe {name!r}", hint)
    return RECIPES[name]
