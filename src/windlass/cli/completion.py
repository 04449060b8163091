"""`completion`: prints the shell script that completes commands, options and run ids."""

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
BASH = r"""_windlass_completion() {
    local line=${COMP_LINE:0:COMP_POINT} files= item
    # To bash, RUN:PATH are three words, of which it replaces the last: `word` is all of it, `kept` what it leaves.
    local word=${line##*[[:space:]]} kept=
    [[ $line == *[\\\'\"]* ]] && word=${COMP_WORDS[COMP_CWORD]}
    [[ $COMP_WORDBREAKS == *:* ]] && kept=${word%"${word##*[:=]}"}
    COMPREPLY=()
    while IFS= read -r item; do
        case ${item%%,*} in
            file) files=-f ;;
            dir) files=-d ;;
            plain) item=${item#*,} item=${item%%$'\t'*}
                   COMPREPLY+=("${item#"$kept"}") ;;
        esac
    done < <(env COMP_WORDS="$line" COMP_CWORD="$word" _WINDLASS_COMPLETE=fish_complete "$1")
    if [[ $files && ${#COMPREPLY[@]} == 0 ]]; then
        compopt -o default
    elif [[ $files ]]; then
        while IFS= read -r item; do
            [[ -d $item ]] && item+=/
            COMPREPLY+=("$(printf %q "${item#"$kept"}")")
        done < <(compgen $files -- "$word")
    fi
    [[ ${COMPREPLY[0]} == *[:/=] ]] && compopt -o nospace
    return 0
}

complete -o nosort -F _windlass_completion windlass
"""
"""Script for bash. Click's own script cannot complete words with a colon, or files in addition to other words."""


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
    script = BASH if shell == "bash" else found(cli, {}, "windlass", VARIABLE).source()
    # splits at the first comma only, because help texts contain commas
    click.echo(script.replace('string split ","', 'string split --max 1 ","'))
    if sys.stdout.isatty():
        click.echo(f"# To install it: {INSTALL[shell]}", err=True)
    return 0
