"""Takes its arguments by click."""

import click


@click.command()
@click.option("--epochs", default=1)
def main(epochs):
    print("epochs", epochs)


main()
