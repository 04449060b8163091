"""Values become JSON data, and views are built from the fields of their sources."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.views.serialise import view_of


@dataclass
class View:
    name: str
    size: int


@dataclass
class Named:
    name: str


@dataclass
class Sized:
    name: str
    size: int


def test_first_source_with_a_field_wins_in_each_order_of_the_sources() -> None:
    for _ in range(2):  # the second time, the classes of the sources are known
        assert view_of(View, Named("a"), Sized("b", 1)) == View("a", 1)
        assert view_of(View, Sized("b", 1), Named("a")) == View("b", 1)
        assert view_of(View, Named("a"), Sized("b", 1), name="c") == View("c", 1)
        assert view_of(View, Named("a"), size=2) == View("a", 2)
