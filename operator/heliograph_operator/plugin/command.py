"""The command ``kubectl-heliograph``, which kubectl runs as ``kubectl heliograph``."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from heliograph_api import __version__
from heliograph_api.crds.definitions import DEFINITIONS
from heliograph_api.tables import new_table

from heliograph_operator.objects.kinds import KINDS, full_name, key_of

from .explanation import explanation
from .kubectl import Kubectl, KubectlFailed, kubectl
from .new_backup import NotEnded, create, follow, template
from .overview import ResourceState, cluster_rows, connection_rows, kind_rows, not_ready
from .support_bundle import write_bundle

app = typer.Typer(
    name="kubectl heliograph",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
#: What people call a kind: its name, its plural, and its short name.
_CALLED = {
    called: kind.name
    for kind in KINDS.values()
    for called in (kind.name.lower(), kind.plural, full_name(kind.name), DEFINITIONS[kind.name].short_name)
}

Where = Annotated[
    str, typer.Option("-n", "--namespace", metavar="NAME", help="Kubernetes namespace; default: that of the context.")
]
Everywhere = Annotated[bool, typer.Option("-A", "--all-namespaces", help="All Kubernetes namespaces.")]
Context = Annotated[str, typer.Option("--context", metavar="NAME", help="Context of the kubeconfig.")]
Config = Annotated[str, typer.Option("--kubeconfig", metavar="FILE", help="The kubeconfig.")]


def _asking(context: str, config: str, namespace: str = "", everywhere: bool = False) -> Kubectl:
    if namespace and everywhere:
        raise typer.BadParameter("give --namespace or --all-namespaces, not both")
    return kubectl(context, config, ["-A"] if everywhere else ["-n", namespace] if namespace else [])


def _fail(reason: object) -> NoReturn:
    print(f"Error: {reason}", file=sys.stderr)
    raise typer.Exit(2)


@app.callback()
def heliograph() -> None:
    """Shows the state of Heliograph's resources on Kubernetes and the reasons for it, and makes Backups.

    \b
      kubectl heliograph status -A
      kubectl heliograph explain htopic orders
      kubectl heliograph logs main --follow
      kubectl heliograph backup before-upgrade --like nightly --wait
      kubectl heliograph support-bundle

    It runs kubectl for every request: contexts, users and permissions are those of kubectl.
    """


@app.command()
def version() -> None:
    """Print the version."""
    print(f"kubectl-heliograph {__version__}")


@app.command()
def status(
    namespace: Where = "",
    everywhere: Everywhere = False,
    output: Annotated[str, typer.Option("-o", "--output", metavar="FORM", help="text or json")] = "text",
    context: Context = "",
    config: Config = "",
) -> None:
    """Print BrokerClusters and BrokerConnections, the number of ready resources of each kind, and why others are not.

    Exit codes: 0: all are ready; 1: some are not; 2: the API server could not be asked.
    """
    if output not in ("text", "json"):
        raise typer.BadParameter(f"{output!r} is not a form of output: text or json", param_hint="--output")
    try:
        bodies = _asking(context, config, namespace, everywhere).resources()
    except KubectlFailed as error:
        _fail(error)
    waiting = not_ready(bodies)
    if output == "json":
        print(json.dumps({"resources": len(bodies), "notReady": [dataclasses.asdict(each) for each in waiting]}))
    elif not bodies:
        print("There are no resources of heliograph.dev here; -A is about all Kubernetes namespaces.")
    else:
        _print_status(cluster_rows(bodies), connection_rows(bodies), kind_rows(bodies), waiting)
    raise typer.Exit(1 if waiting else 0)


def _print_status(
    clusters: list[tuple[str, ...]],
    connections: list[tuple[str, ...]],
    kinds: list[tuple[str, ...]],
    waiting: list[ResourceState],
) -> None:
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False, markup=False)
    table = new_table("NAMESPACE", "BROKERCLUSTER", "READY", "REASON", ">BROKERS", "VERSION", "ADDRESS")
    for row in clusters:
        table.add_row(*row)
    console.print(table if clusters else "There is no BrokerCluster here.")
    console.print()
    if connections:
        table = new_table("NAMESPACE", "BROKERCONNECTION", "READY", "REASON", "PRODUCT", "VERSION", "ADMIN-URL")
        for row in connections:
            table.add_row(*row)
        console.print(table)
        console.print()
    table = new_table("KIND", ">RESOURCES", ">READY")
    for row in kinds:
        table.add_row(*row)
    console.print(table)
    if waiting:
        console.print("\nNot ready:")
    for each in waiting:
        console.print(f"  {each.kind} {each.namespace}/{each.name}: {each.reason}: {each.message}")


@app.command()
def explain(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="bcl, hconnection, htenant, hns, htopic, hsub, hbackup or hsbackup, or a longer name of these",
        ),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="metadata.name of the resource")],
    namespace: Where = "",
    context: Context = "",
    config: Config = "",
) -> None:
    """Print a resource's conditions with what each means and what to do, and its events."""
    known = _CALLED.get(kind.lower())
    if known is None:
        short_names = ", ".join(DEFINITIONS[each].short_name for each in KINDS)
        raise typer.BadParameter(f"{kind!r} is none of {short_names}", param_hint="KIND")
    ask = _asking(context, config, namespace)
    try:
        (body,) = ask.objects(full_name(known), name)
        selector = f"involvedObject.name={name},involvedObject.kind={known}"
        events = Kubectl(ask.options, ("-n", key_of(body).namespace)).objects(
            "events", f"--field-selector={selector}", "--sort-by=.lastTimestamp"
        )
    except KubectlFailed as error:
        _fail(error)
    for line in explanation(body, events):
        print(line)


@app.command()
def logs(
    cluster: Annotated[
        str, typer.Argument(metavar="[BROKERCLUSTER]", help="Only the brokers of this BrokerCluster.")
    ] = "",
    operator: Annotated[
        bool, typer.Option("--operator", help="Print the operator's log; give its Kubernetes namespace with -n.")
    ] = False,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Print new lines as they are logged.")] = False,
    tail: Annotated[
        int, typer.Option("--tail", metavar="LINES", help="Last lines of each pod; -1: all.", min=-1)
    ] = 200,
    namespace: Where = "",
    context: Context = "",
    config: Config = "",
) -> None:
    """Print the logs of brokers, or of the operator, each line with its pod."""
    if cluster and operator:
        raise typer.BadParameter("give a BrokerCluster or --operator, not both")
    selector = f"app.kubernetes.io/name=heliograph,app.kubernetes.io/component={'operator' if operator else 'broker'}"
    if cluster:
        selector += f",app.kubernetes.io/instance={cluster}"
    ask = _asking(context, config, namespace)
    try:
        if not ask.objects("pods", "-l", selector):
            wanted = "pods of the operator" if operator else f"broker pods of {cluster}" if cluster else "broker pods"
            _fail(f"no {wanted} in this Kubernetes namespace; name another with -n")
    except KubectlFailed as error:
        _fail(error)
    command = ask.command("logs", "-l", selector, f"--tail={tail}", "--prefix", "--max-log-requests=50")
    sys.stdout.flush()
    # kubectl takes this process's place: its output, its signals and its exit code are the person's.
    os.execvp(command[0], [*command, "--follow"] if follow else command)


@app.command()
def backup(
    name: Annotated[str, typer.Argument(metavar="NAME", help="metadata.name of the Backup to create.")],
    cluster: Annotated[str, typer.Option("--cluster", metavar="NAME", help="The BrokerCluster.")] = "",
    like: Annotated[
        str, typer.Option("--like", metavar="NAME", help="Take cluster and destination from this ScheduledBackup.")
    ] = "",
    bucket: Annotated[str, typer.Option("--bucket", metavar="NAME", help="Bucket of an S3-compatible store.")] = "",
    prefix: Annotated[str, typer.Option("--prefix", metavar="PATH", help="Path in the bucket.")] = "",
    endpoint: Annotated[str, typer.Option("--endpoint", metavar="URL", help="URL of the store.")] = "",
    region: Annotated[str, typer.Option("--region", metavar="NAME", help="Region of the bucket.")] = "",
    secret: Annotated[str, typer.Option("--secret", metavar="NAME", help="Secret with the keys of the store.")] = "",
    claim: Annotated[str, typer.Option("--claim", metavar="NAME", help="PersistentVolumeClaim, in place of S3.")] = "",
    directory: Annotated[str, typer.Option("--directory", metavar="PATH", help="Directory of its volume.")] = "",
    verify: Annotated[bool, typer.Option("--verify", help="Restore it into scratch space and compare it.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Follow it to its end.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="With --wait: at most.")] = 3600.0,
    namespace: Where = "",
    context: Context = "",
    config: Config = "",
) -> None:
    """Create a Backup of a BrokerCluster; with --wait, print its progress.

    Exit codes: 0: it is created or, with --wait, has succeeded; 1: it has failed, or not ended in time; 2: kubectl
    failed.

    \b
    Examples:
      kubectl heliograph backup before-upgrade --like nightly --wait
      kubectl heliograph backup first --cluster main --bucket backups --prefix main --secret store
      kubectl heliograph backup first --cluster main --claim backups --directory main
    """
    if bool(like) == bool(cluster):
        raise typer.BadParameter("give either --like, or --cluster with a destination")
    in_bucket, on_volume, of_store = (bucket, prefix, secret), (claim, directory), (endpoint, region)
    if like and any((*in_bucket, *on_volume, *of_store)):
        raise typer.BadParameter(
            "--like takes the destination of the ScheduledBackup; valid: no option for another one"
        )
    is_bucket, is_volume = all(in_bucket), all(on_volume)
    if cluster and not (is_bucket and not any(on_volume)) and not (is_volume and not any((*in_bucket, *of_store))):
        raise typer.BadParameter("give --bucket, --prefix and --secret, or --claim and --directory")
    ask = _asking(context, config, namespace)
    try:
        if like:
            spec = template(ask, like)
        else:
            s3 = {"bucket": bucket, "prefix": prefix, "endpoint": endpoint, "region": region}
            given = {field: text for field, text in s3.items() if text} | {"credentialsRef": {"name": secret}}
            volume = {"claimRef": {"name": claim}, "directory": directory}
            spec = {"clusterRef": {"name": cluster}, "destination": {"s3": given} if bucket else {"volume": volume}}
        created = create(ask, name, spec | ({"verify": True} if verify else {}))
        print(f"{full_name(created['kind'])} {name} created")
        if wait and not follow(ask, name, timeout, lambda line: print(line, flush=True)):
            raise typer.Exit(1)
    except NotEnded as error:
        print(f"Error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    except KubectlFailed as error:
        _fail(error)


@app.command("support-bundle")
def support_bundle(
    file: Annotated[
        Path | None, typer.Option("-f", "--file", metavar="FILE", help="Default: heliograph-TIME.tar.gz here.")
    ] = None,
    namespace: Where = "",
    everywhere: Everywhere = False,
    context: Context = "",
    config: Config = "",
) -> None:
    """Write resources, their Kubernetes objects, events and logs to an archive that you can send to support.

    It reads no Secrets and removes the values of environment variables, except of those whose names begin with
    HELIOGRAPH_. Look through the archive before you send it: it has logs, the names of topics, and everything else that
    the resources say. Exit code 1: some parts could not be read; the archive says why.
    """
    path = file or Path(f"heliograph-{datetime.now(UTC):%Y%m%d-%H%M%S}.tar.gz")
    ask = _asking(context, config, namespace, everywhere)
    try:
        failed = write_bundle(ask, path, lambda name: print(f"  {name}", file=sys.stderr))
    except FileExistsError:
        _fail(f"{path} exists already: name another file with --file")
    except OSError as error:
        _fail(f"{path} cannot be written: {error.strerror}")
    print(path)
    if failed:
        print(f"{failed} parts could not be read; the archive has the reasons in their places", file=sys.stderr)
        raise typer.Exit(1)


def main() -> None:
    """Run the command line of this process."""
    app()
