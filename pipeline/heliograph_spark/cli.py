"""The command ``heliograph-spark``: topics into archives, and what is made of the archives."""

from __future__ import annotations

import platform
import signal
from typing import TYPE_CHECKING, Annotated

import typer
from heliograph_api import __version__
from pyspark import __version__ as spark_version
from pyspark.sql import SparkSession

from heliograph_spark import serve_metrics
from heliograph_spark.command_options import (
    DEFAULT_ADMIN_URL,
    DEFAULT_NAMESPACE,
    DEFAULT_SERVICE_URL,
    AdminUrl,
    ArchivePath,
    Catalog,
    CatalogProperty,
    Conf,
    FileSize,
    Master,
    ResultFile,
    ServiceUrl,
    SourceOption,
    TableNamespace,
    Topics,
    TopicsPattern,
    duration_ms,
    file_bytes,
    finite_ms,
    positive_ms,
    tables_of,
)
from heliograph_spark.jobs.archiving.options import Tables
from heliograph_spark.plan.errors import JobError
from heliograph_spark.run.session import Broker, Result, SessionOptions, Work, pairs, run_job

if TYPE_CHECKING:
    from heliograph_spark.run.stream_metrics import MetricsServer

app = typer.Typer(
    name="heliograph-spark",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback()
def _group() -> None:
    """Archive, replay, compact and measure topics of Heliograph, or of any Pulsar, with Spark.

    The last line on stdout is the result as JSON; progress and errors go to stderr. Exit codes: 0 for success, 1 if the
    job failed, 2 for an invalid command line, 130 for Ctrl-C.

    \b
    Examples:
      heliograph-spark archive --topic orders --path archive
      heliograph-spark replay --path archive --topic orders --to orders-again
      heliograph-spark usage --to usage-report
    """


def _served(spark: SparkSession, port: int | None) -> MetricsServer | None:
    """Serve metrics at a port; None without one. Raises :class:`JobError` if the port cannot be opened."""
    try:
        # An archive's queries also end as planned by an exception, or are tried again; it counts its failures by topic.
        return None if port is None else serve_metrics(spark, port, failures=False)
    except OSError as error:
        raise JobError(
            f"--metrics-port: port {port} cannot be opened: {error.strerror}; valid: a port that is free"
        ) from error


@app.command("archive")
def archive_command(
    path: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Directory of the archive in files, on any file system that Hadoop knows."),
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
        str,
        typer.Option(
            metavar="NAME",
            help="Durable subscription that keeps messages until they are archived, one for each archive of a topic.",
        ),
    ] = "heliograph-archive",
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Directory of the archive's state; _checkpoint in --path by default, and needed with --catalog.",
        ),
    ] = None,
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
        int | None,
        typer.Option(metavar="N", min=1, help="Topics archived at the same time, with --follow; 4 by default."),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", min=1, max=65535, help="Port for Prometheus metrics while it runs; none by default."
        ),
    ] = None,
    service_url: ServiceUrl = DEFAULT_SERVICE_URL,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    option: SourceOption = None,
    master: Master = None,
    conf: Conf = None,
    result: ResultFile = None,
) -> None:
    """Write topics into files or tables, every message once.

    A run ends at the topics' ends, and acknowledges what is written. The next run with the same options goes on
    where this one ended. With --follow the job goes on with what comes
    later, and with topics that --topics-pattern finds later. SIGTERM ends it after the micro-batches under way.

    \b
    Examples:
      heliograph-spark archive --topic orders --path archive
      heliograph-spark archive --topics-pattern 'orders.*' --path s3a://bucket/archive --follow
      heliograph-spark archive --topic orders --path archive --merge-to 128Mi --keep 90d
      heliograph-spark archive --topic orders --format iceberg --catalog lake --checkpoint lake-state
    """
    if format not in ("parquet", "iceberg"):
        raise typer.BadParameter(f"{format!r} is neither parquet nor iceberg", param_hint="'--format'")
    if format == "iceberg" and catalog is None:
        raise typer.BadParameter("is missing; --format iceberg writes into a catalog", param_hint="'--catalog'")
    if format != "iceberg" and catalog is not None:
        raise typer.BadParameter("is for archives in tables, which need --format iceberg", param_hint="'--catalog'")
    for name, value in (("--interval", interval), ("--parallel", parallel)):
        if value is not None and not follow:
            raise typer.BadParameter("is for --follow only", param_hint=f"'{name}'")
    interval_ms = positive_ms("--interval", interval or "1m", "1s, 1m, 1h")
    source_options = pairs("--option", option)
    tables = tables_of(catalog, catalog_property, table_namespace, upsert=upsert)
    sizes = file_bytes("--file-size", file_size), None if merge_to is None else file_bytes("--merge-to", merge_to)
    day_complete_after_ms = duration_ms("--day-complete-after", day_complete_after)
    keep_ms = None if keep is None else positive_ms("--keep", keep, "1d, 90d, 52w")

    def prepare() -> Work:
        from .jobs.archive import ArchiveOptions, archive
        from .jobs.archiving.following import Ending
        from .jobs.archiving.options import Following
        from .jobs.archiving.topic_states import TopicStates
        from .jobs.follow import follow as follow_topics

        options = ArchiveOptions(
            broker=Broker(service_url, admin_url, source_options),
            topics=tuple(topic or ()),
            pattern=topics_pattern,
            path=path,
            tables=tables,
            subscription=subscription,
            checkpoint=checkpoint,
            file_bytes=sizes[0],
            day_complete_after_ms=day_complete_after_ms,
            keep_ms=keep_ms,
            merge_bytes=sizes[1],
        )
        options.check()

        def work(spark: SparkSession) -> Result:
            served = _served(spark, metrics_port)
            if not follow:
                return archive(spark, options)
            ending, states = Ending(), TopicStates()
            if served is not None:
                from .jobs.archiving.archive_metrics import ArchiveMetrics

                served.add(ArchiveMetrics(states))
            signal.signal(signal.SIGTERM, lambda _number, _frame: ending.request())
            return follow_topics(spark, options, Following(parallel or 4, interval_ms), ending, states)

        return work

    run_job("archive", SessionOptions(master, pairs("--conf", conf)), result, prepare)


@app.command("maintain")
def maintain_command(
    catalog: Annotated[
        str, typer.Option(metavar="NAME", help="Catalog of the tables, as pyiceberg's configuration names it.")
    ],
    catalog_property: CatalogProperty = None,
    table_namespace: TableNamespace = DEFAULT_NAMESPACE,
    topic: Topics = None,
    keep: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Remove complete days that ended longer ago: 90d; else none are."),
    ] = None,
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
    """Keep an archive's tables small.

    The job merges small files, expires snapshots, and deletes files that no snapshot has. With --keep it first removes
    old days from the tables of all messages. Without --topic these are all tables of the namespace.

    \b
    Examples:
      heliograph-spark maintain --catalog lake
      heliograph-spark maintain --catalog lake --topic orders --keep 90d --keep-snapshots 2d
    """
    tables = Tables(catalog, pairs("--catalog-property", catalog_property), table_namespace)
    bytes_of_file = file_bytes("--file-size", file_size)
    keep_snapshots_ms = finite_ms("--keep-snapshots", keep_snapshots)
    keep_unused_ms = finite_ms("--keep-unused-files", keep_unused_files)
    keep_ms = None if keep is None else positive_ms("--keep", keep, "1d, 90d, 52w")

    def prepare() -> Work:
        from .jobs.maintain import MaintainOptions, maintain

        options = MaintainOptions(tables, tuple(topic or ()), bytes_of_file, keep_snapshots_ms, keep_unused_ms, keep_ms)
        options.check()
        return lambda spark: maintain(spark, options)

    run_job("maintain", SessionOptions(master, pairs("--conf", conf)), result, prepare)


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
    rate: Annotated[
        float | None, typer.Option(metavar="NUMBER", help="Limit of messages a second, of all tasks together.")
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option(
            metavar="FACTOR", help="Keep the gaps between the times of --order, divided by this; 1 as recorded."
        ),
    ] = None,
    producer_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Producer name; a topic that deduplicates skips messages that an earlier run of this name sent.",
        ),
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
    """Send archived messages to a topic again.

    They have their keys, event times and properties, and those of one key their order.

    \b
    Examples:
      heliograph-spark replay --path archive --topic orders --to orders-again
      heliograph-spark replay --path archive --topic orders --to orders-again --from 2024-03-01 --rate 5000
      heliograph-spark replay --path archive --topic orders --to orders-again --key customer-1
      heliograph-spark replay --catalog lake --topic orders --to orders-again --checkpoint replay-state
    """
    if order not in ("publish", "event"):
        raise typer.BadParameter(f"{order!r} is neither publish nor event", param_hint="'--order'")
    tables = tables_of(catalog, catalog_property, table_namespace, upsert=upsert)
    source_options, properties = pairs("--option", option), pairs("--property", with_property)

    def prepare() -> Work:
        from heliograph_spark.plan.timestamps import parse_moment

        from .jobs.replay import ReplayOptions, replay

        options = ReplayOptions(
            broker=Broker(service_url, admin_url, source_options),
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
            properties=properties,
            tables=tables,
        )
        options.check()
        return lambda spark: replay(spark, options)

    run_job("replay", SessionOptions(master, pairs("--conf", conf)), result, prepare)


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
    """Report who stores how much, and when quotas are reached.

    The report also has the growth of topics, the subscriptions that lag, and the keys with most messages. It is the
    page usage.html with plots, and its tables in Parquet and CSV.

    \b
    Examples:
      heliograph-spark usage --to usage-report
      heliograph-spark usage --to usage-report --tenant sales --archive archive
    """
    if clock not in ("publish", "event"):
        raise typer.BadParameter(f"{clock!r} is neither publish nor event", param_hint="'--clock'")
    tables, source_options = tables_of(catalog, catalog_property, table_namespace), pairs("--option", option)

    def prepare() -> Work:
        from .jobs.usage import UsageOptions, usage

        options = UsageOptions(
            broker=Broker(service_url, admin_url, source_options),
            to=to,
            tenants=tuple(tenant or ()),
            archive=archive_path,
            clock="publish" if clock == "publish" else "event",
            tables=tables,
        )
        options.check()
        return lambda spark: usage(spark, options)

    run_job("usage", SessionOptions(master, pairs("--conf", conf)), result, prepare)


@app.command("compact")
def compact_command(
    to: Annotated[str, typer.Option(metavar="DIR", help="Directory of the tables of last values, one for each topic.")],
    path: ArchivePath = None,
    catalog: Catalog = None,
    catalog_property: CatalogProperty = None,
    table_namespace: TableNamespace = DEFAULT_NAMESPACE,
    topic: Topics = None,
    master: Master = None,
    conf: Conf = None,
    result: ResultFile = None,
) -> None:
    """Make tables of the last value of each key.

    There is a table for each topic of an archive, or for those that --topic names.

    \b
    Examples:
      heliograph-spark compact --path archive --to tables
      heliograph-spark compact --path archive --to tables --topic orders
      heliograph-spark compact --catalog lake --to tables
    """
    tables = tables_of(catalog, catalog_property, table_namespace)

    def prepare() -> Work:
        from .jobs.compact import CompactOptions, compact

        options = CompactOptions(path=path, to=to, topics=tuple(topic or ()), archive_tables=tables)
        options.check()
        return lambda spark: compact(spark, options)

    run_job("compact", SessionOptions(master, pairs("--conf", conf)), result, prepare)


@app.command("version")
def version_command() -> None:
    """Print the versions of heliograph-spark, Spark and Python.

    \b
    Examples:
      heliograph-spark version
    """
    print(f"heliograph-spark {__version__}, Spark {spark_version}, Python {platform.python_version()}")


def main() -> None:
    app()


if __name__ == "__main__":
    main()
