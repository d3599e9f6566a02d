"""The command ``heliograph-spark``: topics into archives, and what is made of the archives."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer
from heliograph_api.values.durations import InvalidDuration, parse_duration
from heliograph_api.values.sizes import InvalidSize, parse_size
from pyspark.sql import SparkSession

from heliograph_spark import serve_metrics
from heliograph_spark.jobs.archiving.options import Tables
from heliograph_spark.run.session import Broker, Result, SessionOptions, pairs, run_job

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

ServiceUrl = Annotated[
    str,
    typer.Option("--service-url", envvar="HELIOGRAPH_SERVICE_URL", metavar="URL", help="The broker's binary port."),
]
AdminUrl = Annotated[
    str, typer.Option("--admin-url", envvar="HELIOGRAPH_ADMIN_URL", metavar="URL", help="The broker's REST API.")
]
SourceOption = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="Option of the data source; may be repeated."),
]
Master = Annotated[
    str | None,
    typer.Option(help="Spark master URL; else from Spark's own settings or SPARK_MASTER, else local[[*]."),
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="Setting of Spark; may be repeated.")
]
ResultFile = Annotated[
    Path | None, typer.Option("--result", metavar="FILE", help="File to which the result is also written, as JSON.")
]
Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Name of a topic; may be repeated.")]
TopicsPattern = Annotated[
    str | None,
    typer.Option(metavar="REGEX", help="Regular expression of topic names in one namespace, instead of --topic."),
]
Catalog = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Catalog of an archive in tables, as pyiceberg's configuration names it."),
]
ArchivePath = Annotated[str | None, typer.Option(help="Directory of an archive in files; or else --catalog.")]
FileSize = Annotated[str, typer.Option(metavar="SIZE", help="Approximate size of a file: 128Mi, 1G or bytes.")]
CatalogProperty = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="Property of the catalog, such as type, uri or warehouse; may be repeated."),
]
TableNamespace = Annotated[
    str, typer.Option(metavar="NAME", help="Namespace of the tables, its levels divided by dots.")
]

DEFAULT_NAMESPACE = "archive"
DEFAULT_SERVICE_URL = "pulsar://127.0.0.1:6650"
DEFAULT_ADMIN_URL = "http://127.0.0.1:8080"


@app.callback()
def _group() -> None:
    """Moves topics of Heliograph, or of any Pulsar, with Spark. Each command ends with one line of JSON on stdout."""


def file_bytes(option: str, text: str) -> int:
    """Return the size of files in bytes. Raises :class:`typer.BadParameter`, naming the option."""
    try:
        size = parse_size(text)
    except InvalidSize:
        size = 0
    if size <= 0:
        raise typer.BadParameter(
            f"{text!r} is not a size of files; valid: 128Mi, 1G or a number of bytes, above zero",
            param_hint=f"'{option}'",
        )
    return size


def duration_ms(option: str, text: str) -> int:
    """Return a duration in ms, -1 without an end. Raises :class:`typer.BadParameter`, naming the option."""
    try:
        return parse_duration(text)
    except InvalidDuration as error:
        raise typer.BadParameter(str(error), param_hint=f"'{option}'") from error


def positive_ms(option: str, text: str, valid: str) -> int:
    """Return a duration above zero in ms. Raises :class:`typer.BadParameter`, naming the option."""
    found = duration_ms(option, text)
    if found <= 0:
        raise typer.BadParameter(f"{text!r} is no time above zero; valid: {valid}", param_hint=f"'{option}'")
    return found


def finite_ms(option: str, text: str) -> int:
    """Return a duration in ms. Raises :class:`typer.BadParameter`, naming the option, also for one without an end."""
    found = duration_ms(option, text)
    if found < 0:
        raise typer.BadParameter(f"{text!r} has no end; valid: 12h, 5d or another time", param_hint=f"'{option}'")
    return found


def tables_of(
    catalog: str | None, properties: list[str] | None, namespace: str, *, upsert: bool = False
) -> Tables | None:
    """Return the tables that the options name; None without a catalog.

    Raises :class:`typer.BadParameter`, naming the option, for one that needs a catalog.
    """
    if catalog is not None:
        return Tables(catalog, pairs("--catalog-property", properties), namespace, upsert)
    for option, given in (
        ("--catalog-property", bool(properties)),
        ("--table-namespace", namespace != DEFAULT_NAMESPACE),
        ("--upsert", upsert),
    ):
        if given:
            raise typer.BadParameter("is for archives in tables, which need --catalog", param_hint=f"'{option}'")
    return None


@app.command("archive")
def archive_command(
    path: Annotated[
        str | None, typer.Option(help="Directory of the archive in files, on any file system that Hadoop knows.")
    ] = None,
    topic: Topics = None,
    topics_pattern: TopicsPattern = None,
    format: Annotated[
        str,
        typer.Option(
            metavar="parquet|iceberg",
            help="Files in --path, or Apache Iceberg tables in --catalog with their state in --checkpoint.",
        ),
    ] = "parquet",
    catalog: Annotated[
        str | None, typer.Option(metavar="NAME", help="Catalog of the tables, as pyiceberg's configuration names it.")
    ] = None,
    catalog_property: CatalogProperty = None,
    table_namespace: TableNamespace = DEFAULT_NAMESPACE,
    upsert: Annotated[
        bool,
        typer.Option("--upsert", help="Keep the last value of each key, in tables of their own, not all messages."),
    ] = False,
    subscription: Annotated[
        str, typer.Option(help="Durable subscription that keeps messages until they are archived.")
    ] = "heliograph-archive",
    checkpoint: Annotated[str | None, typer.Option(help="Directory of its state; PATH/_checkpoint for files.")] = None,
    file_size: FileSize = "128Mi",
    day_complete_after: Annotated[
        str,
        typer.Option(metavar="DURATION", help="Time from a day's end to its mark _SUCCESS; infinite for no marks."),
    ] = "1h",
    merge_to: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Size of the files into which smaller ones of a day are merged when it is complete; else none are.",
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Remove complete days that ended longer ago: 90d; else none are."),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Run until SIGTERM, and archive what is new in each topic once in --interval."),
    ] = False,
    interval: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Time between two visits of a topic, with --follow; 1m by default."),
    ] = None,
    parallel: Annotated[
        int | None, typer.Option(min=1, help="Topics archived at the same time, with --follow; 4 by default.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port for Prometheus metrics while it runs; none by default.")
    ] = None,
    service_url: ServiceUrl = DEFAULT_SERVICE_URL,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    option: SourceOption = None,
    master: Master = None,
    conf: Conf = None,
    result: ResultFile = None,
) -> None:
    """Write topics up to their heads into files or tables, every message once, and acknowledge what is written.

    With --follow it goes on with what comes later, and with topics that --topics-pattern finds later. SIGTERM ends it
    after the micro-batches under way.
    """
    from .jobs.archive import ArchiveOptions, archive
    from .jobs.archiving.following import Ending
    from .jobs.archiving.options import Following
    from .jobs.archiving.topic_states import TopicStates
    from .jobs.follow import follow as follow_topics

    if format not in ("parquet", "iceberg"):
        raise typer.BadParameter(f"{format!r} is neither parquet nor iceberg", param_hint="'--format'")
    if (catalog is not None) != (format == "iceberg"):
        raise typer.BadParameter("--format iceberg needs a catalog, and parquet has none", param_hint="'--catalog'")
    options = ArchiveOptions(
        broker=Broker(service_url, admin_url, pairs("--option", option)),
        topics=tuple(topic or ()),
        pattern=topics_pattern,
        path=path,
        tables=tables_of(catalog, catalog_property, table_namespace, upsert=upsert),
        subscription=subscription,
        checkpoint=checkpoint,
        file_bytes=file_bytes("--file-size", file_size),
        day_complete_after_ms=duration_ms("--day-complete-after", day_complete_after),
        keep_ms=None if keep is None else positive_ms("--keep", keep, "1d, 90d, 52w"),
        merge_bytes=None if merge_to is None else file_bytes("--merge-to", merge_to),
    )
    for name, value in (("--interval", interval), ("--parallel", parallel)):
        if value is not None and not follow:
            raise typer.BadParameter("is for --follow only", param_hint=f"'{name}'")
    following = Following(parallel=parallel or 4, interval_ms=positive_ms("--interval", interval or "1m", "1s, 1m, 1h"))

    def work(spark: SparkSession) -> Result:
        served = serve_metrics(spark, metrics_port) if metrics_port is not None else None
        if not follow:
            return archive(spark, options)
        ending, states = Ending(), TopicStates()
        if served is not None:
            from .jobs.archiving.archive_metrics import ArchiveMetrics

            served.add(ArchiveMetrics(states))
        signal.signal(signal.SIGTERM, lambda _number, _frame: ending.request())
        return follow_topics(spark, options, following, ending, states)

    run_job("archive", SessionOptions(master, pairs("--conf", conf)), result, work)


@app.command("maintain")
def maintain_command(
    catalog: Annotated[
        str, typer.Option(metavar="NAME", help="Catalog of the tables, as pyiceberg's configuration names it.")
    ],
    catalog_property: CatalogProperty = None,
    table_namespace: TableNamespace = DEFAULT_NAMESPACE,
    topic: Topics = None,
    file_size: FileSize = "128Mi",
    keep_snapshots: Annotated[
        str, typer.Option(metavar="DURATION", help="Time for which snapshots stay, and with them what was merged.")
    ] = "5d",
    keep_unused_files: Annotated[
        str,
        typer.Option(metavar="DURATION", help="Time for which files that no snapshot has stay; longer than any run."),
    ] = "3d",
    master: Master = None,
    conf: Conf = None,
    result: ResultFile = None,
) -> None:
    """Merge small files of an archive's tables, expire snapshots, and delete files that no snapshot has."""
    from .jobs.maintain import MaintainOptions, maintain

    options = MaintainOptions(
        tables=Tables(catalog, pairs("--catalog-property", catalog_property), table_namespace),
        topics=tuple(topic or ()),
        file_bytes=file_bytes("--file-size", file_size),
        keep_snapshots_ms=finite_ms("--keep-snapshots", keep_snapshots),
        keep_unused_ms=finite_ms("--keep-unused-files", keep_unused_files),
    )
    run_job("maintain", SessionOptions(master, pairs("--conf", conf)), result, lambda spark: maintain(spark, options))


@app.command("replay")
def replay_command(
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="Topic that was archived.")],
    to: Annotated[str, typer.Option(metavar="TOPIC", help="Topic to send to.")],
    path: ArchivePath = None,
    catalog: Catalog = None,
    catalog_property: CatalogProperty = None,
    table_namespace: TableNamespace = DEFAULT_NAMESPACE,
    upsert: Annotated[
        bool,
        typer.Option("--upsert", help="Send the last value of each key, from the tables that archive --upsert keeps."),
    ] = False,
    begin: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="First publish time: ISO 8601 or ms since 1970.")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="End of the publish times, excluded.")
    ] = None,
    event_begin: Annotated[
        str | None,
        typer.Option(
            "--event-from",
            metavar="TIME",
            help="First event time: ISO 8601 or ms since 1970; messages without one are not sent.",
        ),
    ] = None,
    event_end: Annotated[
        str | None,
        typer.Option(
            "--event-until",
            metavar="TIME",
            help="End of the event times, excluded; messages without one are not sent.",
        ),
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Only messages with this key; may be repeated.")
    ] = None,
    with_property: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="Only messages with this property; may be repeated."),
    ] = None,
    order: Annotated[
        str,
        typer.Option(metavar="publish|event", help="Time by which the partitions of the archived topic are merged."),
    ] = "publish",
    rate: Annotated[float | None, typer.Option(help="Limit of messages per second, over all tasks.")] = None,
    speed: Annotated[
        float | None,
        typer.Option(
            metavar="FACTOR", help="Keep the gaps between the times of --order, divided by this; 1 as recorded."
        ),
    ] = None,
    producer_name: Annotated[
        str | None,
        typer.Option(help="Producer name; a topic that deduplicates skips messages an earlier run of this name sent."),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Directory of the replay's state, with which a run goes on where a killed one stopped. The target has"
            " to deduplicate, and only --rate, --speed, --option and --catalog-property may change.",
        ),
    ] = None,
    service_url: ServiceUrl = DEFAULT_SERVICE_URL,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    option: SourceOption = None,
    master: Master = None,
    conf: Conf = None,
    result: ResultFile = None,
) -> None:
    """Send archived messages to a topic, with their keys, event times and properties, each key in its order."""
    from heliograph_spark.plan.timestamps import parse_moment

    from .jobs.replay import ReplayOptions, replay

    if order not in ("publish", "event"):
        raise typer.BadParameter(f"{order!r} is neither publish nor event", param_hint="'--order'")
    tables = tables_of(catalog, catalog_property, table_namespace, upsert=upsert)

    def work(spark: SparkSession) -> Result:
        options = ReplayOptions(
            broker=Broker(service_url, admin_url, pairs("--option", option)),
            path=path,
            topic=topic,
            to=to,
            from_ms=None if begin is None else parse_moment("--from", begin),
            until_ms=None if end is None else parse_moment("--until", end),
            event_from_ms=None if event_begin is None else parse_moment("--event-from", event_begin),
            event_until_ms=None if event_end is None else parse_moment("--event-until", event_end),
            rate=rate,
            speed=speed,
            producer_name=producer_name,
            checkpoint=checkpoint,
            order="publish" if order == "publish" else "event",
            keys=tuple(key or ()),
            properties=pairs("--property", with_property),
            tables=tables,
        )
        return replay(spark, options)

    run_job("replay", SessionOptions(master, pairs("--conf", conf)), result, work)


@app.command("usage")
def usage_command(
    to: Annotated[str, typer.Option(metavar="DIR", help="Directory for the report; an earlier one is replaced.")],
    tenant: Annotated[
        list[str] | None, typer.Option(metavar="TENANT", help="Only this tenant; may be repeated.")
    ] = None,
    archive_path: Annotated[
        str | None,
        typer.Option("--archive", metavar="PATH", help="Archive in files whose messages are counted as well."),
    ] = None,
    catalog: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Catalog of an archive in tables whose messages are counted as well, as pyiceberg's configuration"
            " names it.",
        ),
    ] = None,
    catalog_property: CatalogProperty = None,
    table_namespace: TableNamespace = DEFAULT_NAMESPACE,
    clock: Annotated[
        str, typer.Option(metavar="publish|event", help="Time of a message that counts for growth.")
    ] = "publish",
    service_url: ServiceUrl = DEFAULT_SERVICE_URL,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    option: SourceOption = None,
    master: Master = None,
    conf: Conf = None,
    result: ResultFile = None,
) -> None:
    """Report storage by topic, its growth, lagging subscriptions, and when a backlog quota is reached."""
    from .jobs.usage import UsageOptions, usage

    if clock not in ("publish", "event"):
        raise typer.BadParameter(f"{clock!r} is neither publish nor event", param_hint="'--clock'")
    options = UsageOptions(
        broker=Broker(service_url, admin_url, pairs("--option", option)),
        to=to,
        tenants=tuple(tenant or ()),
        archive=archive_path,
        clock="publish" if clock == "publish" else "event",
        tables=tables_of(catalog, catalog_property, table_namespace),
    )
    run_job("usage", SessionOptions(master, pairs("--conf", conf)), result, lambda spark: usage(spark, options))


@app.command("compact")
def compact_command(
    to: Annotated[str, typer.Option(help="Directory of the tables of last values, one for each topic.")],
    path: ArchivePath = None,
    catalog: Catalog = None,
    catalog_property: CatalogProperty = None,
    table_namespace: TableNamespace = DEFAULT_NAMESPACE,
    topic: Topics = None,
    master: Master = None,
    conf: Conf = None,
    result: ResultFile = None,
) -> None:
    """Make a table of the last value of each key of archived topics; without --topic, of all topics in the archive."""
    from .jobs.compact import CompactOptions, compact

    tables = tables_of(catalog, catalog_property, table_namespace)
    options = CompactOptions(path=path, to=to, topics=tuple(topic or ()), archive_tables=tables)
    run_job("compact", SessionOptions(master, pairs("--conf", conf)), result, lambda spark: compact(spark, options))


def main() -> None:
    app()


if __name__ == "__main__":
    main()
