"""`ui` and `open`: serve the web page of runs, and open a run in the browser."""

from __future__ import annotations

from threading import Thread
from typing import Any, Final

import click

from windlass.cli import options

HOST: Final = "127.0.0.1"
INSTALL: Final = "pip install 'starlette>=1' uvicorn jinja2"


@click.command()
@click.option("--no-open", is_flag=True, help="Print a one-time link instead of opening the browser.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="Port. Default: 8421, or a free one; 0: free.")
@click.option("--host", default=HOST, metavar="ADDRESS", show_default=True, help="Address to listen on.")
@click.option("--allow-actions", is_flag=True, help="Let the page stop, resume and rerun runs, and write notes.")
@options.debug
def ui(no_open: bool, port: int | None, host: str, allow_actions: bool) -> int:
    """Show runs, curves, logs and targets in the browser, live. Ends with Ctrl-C.

    The page is read-only without --allow-actions, and only this machine can reach it. Each link starts one session of
    one browser, and works once; `windlass open` makes further ones. With another --host, other machines reach the page
    over HTTP without encryption: a link in the wrong hands shows all runs. From another machine, better:
    ssh -L 8421:127.0.0.1:8421 HOST.

    \b
    Example:
      windlass ui
      windlass ui --no-open --port 8421
      windlass ui --allow-actions
    """
    return _serve("/", host, port, allow_actions=allow_actions, no_open=no_open)


@click.command("open")
@options.run_argument
@click.option("--no-open", is_flag=True, help="Print a one-time link instead of opening the browser.")
@options.debug
def open_(run: str | None, no_open: bool) -> int:
    """Open the page of a run in the browser.

    Uses a running `windlass ui`; without one, serves the page until Ctrl-C.

    \b
    Example:
      windlass open digits-7f3k2
      windlass open                        the newest run
      windlass open --no-open digits       print a link, to open elsewhere
    """
    from windlass.runs.context import here
    from windlass.services.browser_access import address_of
    from windlass.web.serve import ask_link, find_running

    context = here()
    with context.store() as store:
        path = f"/runs/{store.find(run)}"
    running = find_running(context.home)
    if running is None:
        return _serve(path, HOST, None, allow_actions=False, no_open=no_open)
    _show(ask_link(running, path), address_of(running.host, running.port, path), no_open=no_open)
    return 0


def _serve(path: str, host: str, port: int | None, *, allow_actions: bool, no_open: bool) -> int:
    from windlass.errors import MissingExtra
    from windlass.runs.context import here

    try:
        import jinja2  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtra(f"the web page needs {error.name}", INSTALL) from error
    from windlass.services.browser_access import is_loopback
    from windlass.web.serve import serve

    def ready(address: str, link: str) -> None:
        if not is_loopback(host):
            click.echo(f"other machines can reach the page, without encryption: {host}", err=True)
        # A browser in the terminal blocks until it ends, and needs the server meanwhile.
        arguments: dict[str, Any] = {"target": _show, "args": (link, address), "kwargs": {"no_open": no_open}}
        Thread(**arguments, name="windlass-browser", daemon=True).start()
        click.echo("Ctrl-C ends the page; runs continue.", err=True)

    serve(here(), host, port, may_act=allow_actions, first_path=path, on_ready=ready)
    return 0


def _show(link: str, address: str, *, no_open: bool) -> None:
    from windlass.runs.context import here
    from windlass.web.serve import open_browser

    if not no_open and open_browser(here().home, link):
        click.echo(f"opened in the browser: {address}", err=True)
    else:
        click.echo(link)
