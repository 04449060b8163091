"""The help of every command fits a terminal of 80 columns: nothing is cut, and no word is broken."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from windlass.cli.main import cli

COLUMNS = 80
SYNTAX = "[ARGS]..."
"""Part of a group's usage line, as click writes it."""


def commands(command: click.Command, parent: click.Context | None = None, name: str = "windlass") -> Iterator[str]:
    """Yields every command line prefix, such as `windlass data copy`."""
    yield name
    if isinstance(command, click.Group):
        context = click.Context(command, parent)
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from commands(found, context, f"{name} {below}")


def help_of(typed: str, columns: int) -> str:
    """Returns the help of a command on a terminal of `columns`."""
    command: click.Command | None = cli
    # Sets the names of the help options, which a command caches at the first lookup.
    context = click.Context(cli, info_name="windlass", terminal_width=columns, **cli.context_settings)
    for word in typed.split()[1:]:
        assert isinstance(command, click.Group)
        command = command.get_command(context, word)
        assert command is not None
        context = click.Context(command, context, word, terminal_width=columns)
    assert command is not None
    return command.get_help(context)


@pytest.mark.parametrize("typed", list(commands(cli)))
def test_help_fits_eighty_columns_without_truncation(typed: str) -> None:
    narrow, wide = help_of(typed, COLUMNS), help_of(typed, 1000)
    assert [line for line in narrow.splitlines() if len(line) > COLUMNS] == []
    assert [line for line in wide.splitlines() if line.endswith("...") and not line.endswith(SYNTAX)] == []
    assert [line for line in narrow.splitlines() if line.endswith("...") and not line.endswith(SYNTAX)] == []
    assert set(narrow.split()) - set(wide.split()) == set()
