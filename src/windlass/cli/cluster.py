"""`cluster`: creates EKS clusters for training, checks them, and removes them with an audit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from windlass.cli import options
from windlass.cli.render import emit, print_data

if TYPE_CHECKING:
    from windlass.clusters.draft import Answers
    from windlass.clusters.plan import ClusterPlan
    from windlass.clusters.removal_checks import ClusterUsage

REFUSED: Final = 1
"""Exit code if the user answers no."""
LEFTOVERS: Final = 1
"""Exit code if an audit finds leftovers, or an AWS service did not respond."""


def complete_cluster(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Completes clusters of this user, and files."""
    from windlass.clusters.terraform.folder import ClusterFolder
    from windlass.runs.context import here

    return options.or_file((one.name for one in ClusterFolder.all_in(here().home)), incomplete)


_cluster: Final = click.argument("cluster", required=False, metavar="[CLUSTER]", shell_complete=complete_cluster)
_yes: Final = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
_break_lock: Final = click.option(
    "--break-lock", is_flag=True, help="Release the lock of a Terraform process that has died."
)
_recover: Final = click.option(
    "--recover",
    is_flag=True,
    help="Find resources in AWS that are missing in the Terraform state, such as after its loss.",
)


@click.group()
def cluster() -> None:
    """Create EKS clusters for training with Terraform, check them, and remove them with an audit.

    CLUSTER is a cluster file, or the name of a created cluster. Default: the cluster.yaml of this folder.

    \b
    Example:
      windlass cluster init
      windlass cluster up
      windlass run --on vision
      windlass cluster down vision
    """


@cluster.command(short_help="Write a cluster.yaml; asks for missing values.")
@click.option("--name", help="Name of the cluster.")
@click.option("--region", help="AWS region, such as us-west-2.")
@click.option("--gpus", multiple=True, metavar="TYPE:MAX", help="Instance type and maximum nodes; may be repeated.")
@click.option("--spot/--on-demand", default=None, help="Purchase option of GPU nodes.")
@click.option("--efs/--no-efs", default=None, help="Whether pods share a file system.")
@click.option(
    "--allow",
    "ranges",
    multiple=True,
    metavar="CIDR",
    help="Address range that may reach the API server over the Internet.",
)
@click.option("--force", is_flag=True, help="Overwrite an existing cluster.yaml.")
@options.output
def init(
    name: str | None,
    region: str | None,
    gpus: tuple[str, ...],
    spot: bool | None,
    efs: bool | None,
    ranges: tuple[str, ...],
    force: bool,
    form: str,
) -> int:
    """Write a cluster.yaml. On a terminal, asks up to five questions for values not given as options.

    \b
    Example:
      windlass cluster init
      windlass cluster init --name vision --region us-west-2 --gpus g5.12xlarge:8
    """
    from windlass.actions.prices import default_region
    from windlass.clusters import draft
    from windlass.runs.context import here

    context = here()
    path = draft.path_for(context, force=force)  # refuses an existing file before any question is asked
    can_ask = sys.stdin.isatty() and sys.stderr.isatty()
    answers = draft.Answers(
        name=_asked(name, "Name of the cluster", "training", can_ask, lambda text: draft.check(name=text)),
        region=_asked(region, "AWS region", default_region(context), can_ask, lambda text: draft.check(region=text)),
        gpus=tuple(_pool(one) for one in (gpus or _asked_pools(can_ask))),
        spot=_confirmed(spot, "Spot instances (cheaper, may be taken back)?", False, can_ask),
        efs=_confirmed(efs, "A file system that all pods share (EFS)?", True, can_ask),
        public_access=ranges,
    )
    path.write_text(text := draft.text_of(answers), encoding="utf-8")
    taken = _taken(answers, {"name": name, "region": region, "gpus": gpus or None, "spot": spot, "efs": efs})
    if taken and not can_ask:
        emit([f"no questions were asked, because there is no terminal; used: {', '.join(taken)}"], sys.stderr)
    print_data(
        draft.WrittenCluster(str(path)),
        form,
        [f"{path.name} written:", "", *text.splitlines(), "", "Next: windlass cluster plan, then windlass cluster up"],
    )
    return 0


def _taken(answers: Answers, given: Mapping[str, object]) -> list[str]:
    """Returns the values that the user did not give, written as command-line options."""
    words = {
        "name": f"--name {answers.name}",
        "region": f"--region {answers.region}",
        "gpus": "no --gpus",
        "spot": "--spot" if answers.spot else "--on-demand",
        "efs": "--efs" if answers.efs else "--no-efs",
    }
    return [words[name] for name, value in given.items() if value is None]


def _asked(given: str | None, question: str, default: str, can_ask: bool, check: Callable[[str], object]) -> str:
    if given is not None:
        check(given)
        return given
    return _prompted(question, default, check) if can_ask else default


def _prompted(question: str, default: str, check: Callable[[str], object]) -> str:
    """Asks a question, repeats it while `check` raises WindlassError for the answer, and returns the answer."""
    from windlass.errors import WindlassError, error_line

    def checked(text: str) -> str:
        try:
            check(text)
        except WindlassError as error:
            raise click.UsageError(error_line(error)) from error
        return text

    return str(click.prompt(question, default=default, value_proc=checked, err=True))


def _confirmed(given: bool | None, question: str, default: bool, can_ask: bool) -> bool:
    if given is not None:
        return given
    return click.confirm(question, default=default, err=True) if can_ask else default


def _asked_pools(can_ask: bool) -> tuple[str, ...]:
    if not can_ask:
        return ()
    question = "GPU instance types, each with the most nodes"
    return _words(_prompted(question, "g5.12xlarge:4", _check_pools))


def _check_pools(text: str) -> None:
    from windlass.clusters import draft

    draft.check(gpus=tuple(_pool(one) for one in _words(text)))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _pool(text: str) -> tuple[str, int]:
    """Splits `g5.12xlarge:8` into type and number. Raises UsageError."""
    from windlass.errors import UsageError
    from windlass.pricing.instances import instance_type, near_misses

    name, _, most = text.partition(":")
    if most and not (most.isascii() and most.isdigit()):
        raise UsageError(f"{text}: '{most}' is not a number of nodes", "write for example g5.12xlarge:8")
    if instance_type(name) is None:
        raise UsageError(
            f"{text}: no instance type is called '{name}'", near_misses(name) or "windlass prices list shows all"
        )
    return name, int(most or 4)


@cluster.command(short_help="Show what up would change, and the price.")
@_cluster
@options.output
def plan(cluster: str | None, form: str) -> int:
    """Show what `up` would create, change and remove, and the monthly price. Changes nothing in AWS.

    \b
    Example:
      windlass cluster plan
    """
    from windlass.cli.cluster_progress import shown
    from windlass.cli.clustertext import plan_lines
    from windlass.clusters.find import find
    from windlass.clusters.terraform import StopRequests
    from windlass.clusters.up import plan_up
    from windlass.runs.context import here

    context = here()
    named = find(cluster, context)
    with shown(form) as on_event, StopRequests() as stop, named.folder.locked("cluster plan"):
        _, made = plan_up(named, named.terraform(context, on_event, stop), context, on_event, is_dry=True)
    print_data(made, form, lambda paint: plan_lines(made, paint))
    return 0


@cluster.command(short_help="Create the cluster, or update it to match its file.")
@_cluster
@_yes
@_break_lock
@_recover
@click.option(
    "--force", is_flag=True, help="Continue even if the plan deletes or replaces file systems, images or the bucket."
)
@click.option("--components/--no-components", default=True, help="Whether operators are installed in the cluster.")
@options.output
def up(
    cluster: str | None, yes: bool, break_lock: bool, recover: bool, force: bool, components: bool, form: str
) -> int:
    """Create the cluster, or update it to match its file. Shows the plan and its price first, and asks.

    The command may be interrupted (Ctrl-C once, and wait) or killed; running it again continues, and nothing is
    created twice. Afterwards `--on NAME` runs jobs on the cluster.

    \b
    Example:
      windlass cluster up
      windlass cluster up vision.yaml --yes
    """
    from windlass.actions import clusters
    from windlass.cli.cluster_progress import shown
    from windlass.cli.clustertext import made_lines
    from windlass.clusters.find import find
    from windlass.clusters.terraform import StopRequests
    from windlass.runs.context import here

    context = here()
    named = find(cluster, context)
    with shown(form) as on_event, StopRequests() as stop:
        made = clusters.up(
            named,
            context,
            on_event,
            lambda found: _agree(found, f"Make it in {found.region}?", yes=yes),
            stop,
            break_lock=break_lock,
            with_recovery=recover,
            with_components=components,
            force=force,
        )
    if made is None:
        return REFUSED
    print_data(made, form, lambda paint: made_lines(made, paint))
    return 0


def _agree(found: ClusterPlan, question: str, *, yes: bool) -> bool:
    """Shows a plan and asks for consent. Raises UsageError without a terminal to ask on."""
    from windlass.cli.clustertext import plan_lines
    from windlass.cli.formatting import painter

    emit(plan_lines(found, painter(sys.stderr)), sys.stderr)
    return yes or (_can_ask("plan") and click.confirm(question, err=True))


def _can_ask(what: str) -> bool:
    """Returns true if there is a terminal to ask on; otherwise raises UsageError."""
    from windlass.errors import UsageError

    if not sys.stdin.isatty():
        raise UsageError(f"the {what} needs confirmation, but there is no terminal to ask on", "--yes agrees to it")
    return True


@cluster.command(short_help="Remove the cluster, and verify that nothing is billed.")
@_cluster
@_yes
@_break_lock
@_recover
@click.option(
    "--force",
    is_flag=True,
    help="Continue even if runs or services are active, EFS has files, FSx cannot be exported, or the API server is "
    "unreachable.",
)
@click.option("--delete-bucket", is_flag=True, help="Delete the bucket and its contents.")
@options.output
def down(
    cluster: str | None, yes: bool, break_lock: bool, recover: bool, force: bool, delete_bucket: bool, form: str
) -> int:
    """Remove the cluster in order, and verify with an audit that nothing of it is billed.

    Refused while runs or services are active, and while EFS has files. FSx is exported to the bucket; controllers
    remove their load balancers, volumes and nodes; Terraform destroys the rest. A bucket with objects is kept, with its
    KMS key, unless --delete-bucket. The command may be interrupted or killed; running it again continues. Exits with 1
    if anything is left.

    \b
    Example:
      windlass cluster down vision
    """
    from windlass.actions.clusters import down as remove
    from windlass.cli.cluster_progress import shown
    from windlass.cli.clustertext import removed_lines
    from windlass.clusters.find import find
    from windlass.clusters.terraform import StopRequests
    from windlass.runs.context import here

    context = here()
    named = find(cluster, context)
    with shown(form) as on_event, StopRequests() as stop:
        done = remove(
            named,
            context,
            on_event,
            lambda found, seen: _agree_to_remove(found, seen, yes=yes),
            stop,
            force=force,
            break_lock=break_lock,
            with_recovery=recover,
            delete_bucket=delete_bucket,
        )
    if done is None:
        return REFUSED
    print_data(done, form, lambda paint: removed_lines(done, paint))
    return 0 if done.audit.is_clean and not done.left else LEFTOVERS


def _agree_to_remove(found: ClusterPlan, seen: ClusterUsage, *, yes: bool) -> bool:
    from windlass.cli.clustertext import cluster_note_lines, usage_lines
    from windlass.cli.formatting import painter

    paint = painter(sys.stderr)
    emit(
        [*usage_lines(seen, paint), *cluster_note_lines(found.notes, paint), f"{found.name}: {found.summary}"],
        sys.stderr,
    )
    if yes:
        return True
    _can_ask("removal")
    return str(click.prompt(f"Type {found.name} to remove it", default="", show_default=False, err=True)) == found.name


@cluster.command("ls")
@options.output
def list_(form: str) -> int:
    """List the clusters of this user that are recorded on this machine.

    \b
    Example:
      windlass cluster ls
    """
    from windlass.cli.clustertext import list_lines
    from windlass.clusters.status import summaries
    from windlass.runs.context import here

    found = tuple(summaries(here()))
    if not found and form == "table":
        click.echo("No cluster yet. Describe one: windlass cluster init", err=True)
        return 0
    print_data(found, form, lambda paint: list_lines(found, paint))
    return 0


@cluster.command()
@_cluster
@click.option("--drift/--no-drift", default=True, help="Whether to compare AWS with the Terraform state.")
@options.output
def status(cluster: str | None, drift: bool, form: str) -> int:
    """Show a cluster: differences in AWS, and its operators. Exits with 1 if something differs or fails.

    \b
    Example:
      windlass cluster status vision
    """
    from windlass.cli.cluster_progress import shown
    from windlass.cli.clustertext import status_lines
    from windlass.clusters.find import find
    from windlass.clusters.status import status as inspect
    from windlass.runs.context import here

    context = here()
    named = find(cluster, context)
    with shown(form) as on_event:
        found = inspect(named, context, on_event, with_drift=drift)
    print_data(found, form, lambda paint: status_lines(found, paint))
    is_known = found.summary.state not in ("incomplete", "unknown") and not found.unchecked
    is_complete = is_known and not found.drift and not found.added
    is_well = is_complete and not found.unreachable and all(one.is_healthy for one in found.components)
    return 0 if is_well else 1


@cluster.command(short_help="List the AWS resources of a cluster, with prices.")
@click.argument("name", metavar="NAME", shell_complete=complete_cluster)
@click.option("--region", help="AWS region. Default: the cluster's, else the configured one.")
@click.option(
    "--foreign", is_flag=True, help="The cluster was not created by Windlass: all EKS resources count as in use."
)
@options.output
def audit(name: str, region: str | None, foreign: bool, form: str) -> int:
    """List the AWS resources of a cluster, service by service, with their monthly price.

    Also works for removed clusters, and for clusters not created by Windlass. Read-only. Exits with 1 if anything is
    left, may be left and billed, or could not be checked.

    \b
    Example:
      windlass cluster audit vision --region us-west-2
    """
    from windlass.cli.clustertext import audit_lines
    from windlass.clusters.audit.named import audit_named
    from windlass.runs.context import here

    found = audit_named(name, region or "", here(), is_ours=not foreign)
    print_data(found, form, lambda paint: audit_lines(found, paint))
    return 0 if found.is_clean else LEFTOVERS


@cluster.command(short_help="Write the Terraform configuration of a cluster.")
@_cluster
@click.option("--eksctl", is_flag=True, help="Write an equivalent eksctl ClusterConfig to this folder.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@options.output
def export(cluster: str | None, eksctl: bool, force: bool, form: str) -> int:
    """Write the Terraform configuration of a cluster to its working folder, or an eksctl ClusterConfig to this folder.

    \b
    Example:
      windlass cluster export
      windlass cluster export --eksctl
    """
    from windlass.clusters.export import export_eksctl, export_terraform
    from windlass.clusters.find import find
    from windlass.runs.context import here

    context = here()
    named = find(cluster, context)
    done = export_eksctl(named, context, force=force) if eksctl else export_terraform(named, context)
    notes = [f"note: {one}" for one in done.left_out]
    print_data(done, form, [*(f"{name} written" for name in done.files), *notes])
    return 0


@cluster.command(short_help="Print the IAM policies that a cluster needs.")
@_cluster
@click.option(
    "--for",
    "purpose",
    type=click.Choice(["up", "audit", "doctor", "runs"]),
    default="up",
    show_default=True,
    help="Purpose of the policies; up includes plan, status, down and its audit.",
)
@click.option("--account", default="", help="AWS account, 12 digits. Default: that of the credentials.")
@click.option(
    "--into", type=click.Path(path_type=Path), metavar="FOLDER", help="Write each policy to a file in this folder."
)
@options.output
def policy(cluster: str | None, purpose: str, account: str, into: Path | None, form: str) -> int:
    """Print least-privilege IAM policies, limited to the names and tags of a cluster. Changes nothing in AWS.

    \b
    Example:
      windlass cluster policy
      windlass cluster policy --for runs --account 123456789012 --into policies
    """
    from windlass.cli.policytext import policy_lines
    from windlass.clusters.find import find
    from windlass.clusters.policies.named import policies
    from windlass.runs.context import here

    context = here()
    found = policies(find(cluster, context), purpose, context, account=account, into=into)
    print_data(found, form, lambda paint: policy_lines(found, paint))
    return 0
