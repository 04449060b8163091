"""Raises an exception while it handles another."""


def inner() -> None:
    raise KeyError("weights")


def outer() -> None:
    try:
        inner()
    except KeyError as error:
        raise RuntimeError("no checkpoint") from error


outer()
