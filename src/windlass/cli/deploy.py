"""`deploy` and `invoke`: put a model behind an address for a limited time, and send requests to it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from windlass.cli import options
from windlass.cli.formatting import Paint, duration, price, visible
from windlass.cli.render import print_data
from windlass.cli.statustext import clock_time, labelled

if TYPE_CHECKING:
    from windlass.plan.exposure import Exposure
    from windlass.views.services import Invocation, PlannedDeployment, ServiceView

DEFAULT_FOR: Final = "8h"
HINT: Final = "write it as 30min, 2h or 3d"


def lasting(command: options.Command) -> options.Command:
    """Adds `--for` and `--keep`, which say when a service ends."""
    keep = click.option("--keep", is_flag=True, help="Never end by itself: bills until it is closed.")
    text = "End by itself after this time."
    return click.option("--for", "lasts", metavar="2h", default=DEFAULT_FOR, show_default=True, help=text)(
        keep(command)
    )


def seconds_of(lasts: str, *, keep: bool) -> float | None:
    """Returns after how many seconds a service ends by itself; None with `--keep`. Raises UsageError."""
    return None if keep else options.seconds(lasts, "--for", HINT, is_positive=True)


def complete_deployment(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Completes the names of deployments that this machine has made."""
    from windlass.runs.context import here
    from windlass.services.known import known_deployments

    return sorted({one.name for one in known_deployments(here().home) if one.name.startswith(incomplete)})


def complete_model(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Completes runs and files."""
    return options.or_file(options.complete_run(ctx, parameter, incomplete), incomplete)


@click.command()
@click.argument("model", metavar="MODEL|RUN", shell_complete=complete_model)
@click.option(
    "--on",
    default="local",
    metavar="TARGET",
    show_default=True,
    shell_complete=options.complete_targets,
    help="Target that runs the model.",
)
@click.option("--name", default="", help="Name of the deployment. Default: that of the run or of the model.")
@click.option(
    "--code",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File or folder with predict.py or inference.py. Default: that of the model or the run.",
)
@click.option("--function", default="", metavar="FILE:NAME", help="Function that makes the module of a state dict.")
@lasting
@click.option("--image", default="", help="Container image. Default: that of the run, or AWS's inference image.")
@click.option("--instance", default="", metavar="TYPE", help="Instance type of SageMaker.")
@click.option("--serverless", is_flag=True, help="On SageMaker, run the model only during requests.")
@click.option("--replicas", type=options.WholeNumber(1), default=1, show_default=True, help="Number of servers.")
@click.option("--max-replicas", type=options.WholeNumber(1), metavar="N", help="Let a cluster scale to N by CPU use.")
@click.option("--cpus", type=float, default=1.0, show_default=True, help="CPU cores of each server.")
@click.option("--memory", default="2GiB", show_default=True, help="Memory of each server.")
@click.option("--gpus", type=options.WholeNumber(0), default=0, show_default=True, help="GPUs of each server.")
@click.option("--kserve", is_flag=True, help="On a cluster with KServe, create an InferenceService.")
@click.option("--service-account", default="", metavar="NAME", help="Service account of the pods.")
@click.option("--secret", "secrets", multiple=True, metavar="NAME", help="Secret with variables of the pods.")
@click.option("--expose", is_flag=True, help="Make a public load balancer in front.")
@click.option(
    "--source-cidr", "cidrs", multiple=True, metavar="CIDR", help="Addresses that may connect; may be repeated."
)
@click.option("--yes-public", is_flag=True, help="Allow a --source-cidr that contains every address.")
@click.argument("server_options", nargs=-1, metavar="[-- SERVER OPTION…]")
@click.option("--plan", "only_plan", is_flag=True, help="Show what would be created; changes nothing.")
@options.output
def deploy(
    model: str, on: str, name: str, code: Path | None, function: str, lasts: str, keep: bool, image: str, instance: str,
    serverless: bool, replicas: int, max_replicas: int | None, cpus: float, memory: str, gpus: int, kserve: bool,
    service_account: str, secrets: tuple[str, ...], expose: bool, cidrs: tuple[str, ...], yes_public: bool,
    server_options: tuple[str, ...], only_plan: bool, form: str,
) -> int:  # fmt: skip
    """Put a model behind an address: on this machine, on a cluster, or as an endpoint of SageMaker.

    MODEL is a file or folder; RUN takes the results of a run. The deployment ends by itself after --for, also while
    this machine is off; `windlass undeploy NAME` ends it sooner. Repeating the command with the same name continues
    what a killed command has begun, and never makes a second deployment.

    \b
    Example:
      windlass deploy digits-7f3k2               on this machine, for 8 hours
      windlass deploy digits-7f3k2 --on lab --replicas 2 --for 2h
      windlass deploy model/ --code predict.py --on aws --instance ml.m5.large
      windlass deploy digits-7f3k2 --on lab -- --batch 16 --batch-wait 5
      windlass deploy digits-7f3k2 --on aws --plan
    """
    from windlass.actions import deployments as actions
    from windlass.engines.deployments import DeploymentRequest
    from windlass.runs.context import here
    from windlass.runs.machine import user_name
    from windlass.views.services import deployment_view, planned_view

    if server_options and not server_options[0].startswith("-"):
        raise click.UsageError(f"deploy takes one model; {server_options[0]} is no option of the server")
    context = here()
    seconds = seconds_of(lasts, keep=keep)
    asked = DeploymentRequest(
        name,
        Path(),
        None if seconds is None else context.now() + seconds,
        user_name(),
        image=image,
        instance=instance,
        replicas=replicas,
        max_replicas=max_replicas or 0,
        cpus=cpus,
        memory_bytes=_bytes(memory),
        gpus=gpus,
        is_serverless=serverless,
        uses_kserve=kserve,
        exposure=exposure_of(cidrs, is_asked=expose, may_be_public=yes_public),
        secrets=secrets,
        service_account=service_account,
        server_options=server_options,
    )
    with actions.planned(model, on, asked, context, code=actions.ModelCode(code, function)) as (
        deployments,
        plan,
        known,
    ):
        if only_plan:
            print_data(planned_view(plan), form, lambda paint: plan_lines(planned_view(plan), context.now(), paint))
            return 0
        for note in plan.notes:
            click.echo(visible(note), err=True)
        found = actions.deploy(deployments, plan, known, context, lambda line: click.echo(visible(line), err=True))
    view = deployment_view(found, context.now())
    print_data(view, form, lambda paint: ready_lines(view, context.now(), paint, is_exposed=expose))
    return 0


@click.command()
@click.argument("name", shell_complete=complete_deployment)
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("--on", metavar="TARGET", shell_complete=options.complete_targets, help="Target of the deployment.")
@click.option("--content-type", default="", help="Type of the request body. Default: by the name of the file.")
@click.option("--accept", default="application/json", show_default=True, help="Type of the answer.")
@click.option("--timeout", default="1min", show_default=True, help="Time limit of the request.")
@options.output
def invoke(name: str, file: str, on: str | None, content_type: str, accept: str, timeout: str, form: str) -> int:
    """Send a file to a deployed model, and print its answer with the names of the predicted classes.

    FILE is JSON, CSV, .npy, .npz or an image; `-` reads standard input and needs --content-type. An answer with an
    error of the model ends with exit code 1.

    \b
    Example:
      windlass invoke digits image.png
      windlass invoke digits samples.npy -o json
      windlass invoke digits - --content-type text/csv
    """
    from windlass.actions import deployments as actions
    from windlass.actions.all_services import deployed_on
    from windlass.runs.context import here

    if file == "-" and not content_type:
        raise click.UsageError("standard input needs --content-type, for example application/json")
    seconds = options.seconds(timeout, "--timeout", "write it as 30s or 2min", is_positive=True)
    body = sys.stdin.buffer.read() if file == "-" else _read(Path(file))
    context = here()
    found = actions.invoke(
        name,
        body,
        content_type or actions.content_type_of(file),
        deployed_on(name, on, context),
        context,
        accept=accept,
        timeout=seconds,
    )
    print_data(found, form, lambda _paint: answer_lines(found))
    return 0 if found.status < 400 else 1


def _read(path: Path) -> bytes:
    """Reads the body of a request. Raises UsageError."""
    from windlass.errors import UsageError

    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})", "name a file, or - for standard input") from error


def exposure_of(cidrs: tuple[str, ...], *, is_asked: bool, may_be_public: bool) -> Exposure | None:
    """Returns who may connect to a public load balancer; None without `--expose`. Raises UsageError."""
    from windlass.plan.exposure import exposure

    if not is_asked:
        if cidrs or may_be_public:
            raise click.UsageError("--source-cidr and --yes-public belong to --expose")
        return None
    return exposure(cidrs, may_be_public=may_be_public)


def _bytes(memory: str) -> int:
    """Parses `--memory`. Raises UsageError."""
    from windlass.errors import UsageError
    from windlass.spec.units import parse_size

    try:
        return parse_size(memory)
    except ValueError as error:
        raise UsageError(f"--memory {memory}: {error}", "write it as 2GiB") from error


def plan_lines(plan: PlannedDeployment, now: float, paint: Paint) -> Iterator[str]:
    """Yields the lines of `deploy --plan`."""
    yield f"{paint(plan.name, bold=True)} on {plan.target}"
    yield from (f"  {number}. {visible(step)}" for number, step in enumerate(plan.steps, 1))
    yield from labelled("price", price_words(plan.price_per_hour, plan.currency), paint)
    yield from labelled("ends", "never by itself" if plan.ends_at is None else end_words(plan.ends_at, now), paint)
    yield from labelled("notes", [visible(note) for note in plan.notes], paint)


def ready_lines(found: ServiceView, now: float, paint: Paint, *, is_exposed: bool) -> Iterator[str]:
    """Yields the lines after a deployment."""
    yield f"{paint(found.name, bold=True)} is {found.phase} on {found.target}"
    yield from labelled("price", price_words(found.price_per_hour, found.currency), paint)
    yield from labelled("ends", "never by itself" if found.ends_at is None else end_words(found.ends_at, now), paint)
    if is_exposed:
        none_yet = f"its load balancer has no address yet: windlass services --on {found.target}"
        yield from labelled("public", f"https://{visible(found.address)}" if found.address else none_yet, paint)
    yield from labelled("invoke", f"windlass invoke {found.name} FILE", paint)
    yield from labelled("end", f"windlass undeploy {found.name}", paint)


def answer_lines(found: Invocation) -> Iterator[str]:
    """Yields the answer of a model as it came, and the names of the classes below it."""
    yield visible(found.body) if isinstance(found.body, str) else json.dumps(found.body)
    if found.labels:
        yield ", ".join(visible(label) for label in found.labels)


def price_words(price_per_hour: float | None, currency: str) -> str:
    """Formats a price an hour: `0.115 USD an hour`, or that it is unknown."""
    return "unknown" if price_per_hour is None else f"{price(price_per_hour, currency)} an hour"


def end_words(ends_at: float, now: float) -> str:
    """Formats when a service ends: `at 18:30:00, in 2h`."""
    return f"at {clock_time(ends_at)}, in {duration(max(0.0, ends_at - now))}"
