"""`port-forward`: makes a port of a rank reachable on this machine."""

from __future__ import annotations

import click

from windlass.cli import options
from windlass.cli.formatting import visible
from windlass.cli.render import print_data

MAX_PORT = 65535


def ports_of(text: str) -> tuple[tuple[int, ...], int]:
    """Returns the local ports to try, 0 for any free one, and the port of the rank, from `[LOCAL:]PORT`. Raises
    UsageError.
    """
    local, colon, port = text.rpartition(":")
    numbers = [int(one) if one.isascii() and one.isdigit() else -1 for one in (local if colon else port, port)]
    if not (0 <= numbers[0] <= MAX_PORT and 1 <= numbers[1] <= MAX_PORT):
        raise click.UsageError(f"'{text}' is no port: write PORT or LOCAL:PORT, such as 6006 or 8080:6006")
    return ((numbers[0],) if colon else (numbers[1], 0)), numbers[1]


@click.command("port-forward")
@click.argument("run", shell_complete=options.complete_run)
@click.argument("port", metavar="[LOCAL:]PORT")
@click.option("--rank", "-r", type=options.WholeNumber(0), metavar="N", help="Port of this rank. Default: rank 0.")
@click.option(
    "--address", default="127.0.0.1", metavar="ADDRESS", show_default=True, help="Address of this machine to listen on."
)
@options.on_cluster
@options.output
def port_forward(run: str, port: str, rank: int | None, address: str, on: str | None, form: str) -> int:
    """Make a port of a rank reachable on this machine, as long as the command runs. Ends with Ctrl-C.

    Without LOCAL, listens on the same port as the rank, or on a free one if that is in use; LOCAL 0 is any free one. In
    a cluster, connections pass through the API server with your login: no Service or load balancer is needed, and the
    program may listen on 127.0.0.1 of its pod. After a restart of the rank, new connections reach its new process. With
    another --address, other machines reach the port.

    \b
    Example:
      windlass port-forward digits-7 6006
      windlass port-forward digits-7 8080:6006 --rank 1
      windlass port-forward digits-7 0:5678 -o json
    """
    from windlass.actions.port_forward import forward_port
    from windlass.errors import WindlassError, error_line
    from windlass.runs.context import here
    from windlass.services.browser_access import is_loopback
    from windlass.views.ports import ForwardedPort

    local_ports, port_of_rank = ports_of(port)

    def ready(found: ForwardedPort) -> None:
        if not is_loopback(address):
            click.echo(f"other machines can reach the port, without login or encryption: {address}", err=True)
        print_data(found, form, f"{found.address} → port {found.port} of rank {found.rank} of {found.id}")
        click.echo("Ctrl-C ends the forward; the run continues.", err=True)

    def failed(error: WindlassError) -> None:
        click.echo(visible(f"a connection failed: {error_line(error)}"), err=True)

    try:
        with here().store() as store:
            forward_port(
                run, port_of_rank, store, on=on, rank=rank or 0, host=address, local_ports=local_ports,
                on_ready=ready, on_failure=failed,
            )  # fmt: skip
    except KeyboardInterrupt:
        pass
    return 0
