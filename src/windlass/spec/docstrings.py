"""Reads the docstrings under the fields of a class from its source."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap


def field_docstrings(owner: type) -> dict[str, str]:
    """Returns the docstring under each field of a class, read from the source; fields of base classes are left out."""
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in itertools.pairwise(tree.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = text
    return found
