"""`completion`: the shell script that completes commands, options and run ids."""

from __future__ import annotations

import sys

import click

from windlass.cli import options

VARIABLE = "_WINDLASS_COMPLETE"
INSTALL = {
    "bash": "windlass completion bash > ~/.local/share/bash-completion/completions/windlass",
    "zsh": "windlass completion zsh > ~/.zfunc/_windlass     (with fpath+=~/.zfunc before compinit in ~/.zshrc)",
    "fish": "windlass completion fish > ~/.config/fish/completions/windlass.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(INSTALL)))
@options.debug
def completion(shell: str) -> int:
    """Print the completion script for bash, zsh or fish.

    \b
    Example:
      source <(windlass completion bash)
      windlass completion fish > ~/.config/fish/completions/windlass.fish
    """
    from click.shell_completion import get_completion_class

    from windlass.cli.main import cli

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, "windlass", VARIABLE).source())
    if sys.stdout.isatty():
        click.echo(f"# To install it: {INSTALL[shell]}", err=True)
    return 0
