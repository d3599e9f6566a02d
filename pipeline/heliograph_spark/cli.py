"""The command ``heliograph-spark``: topics into files, and what is made of the files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from heliograph_api.values.durations import InvalidDuration, parse_duration
from heliograph_api.values.sizes import InvalidSize, parse_size
from pyspark.sql import SparkSession

from heliograph_spark import serve_metrics
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

DEFAULT_SERVICE_URL = "pulsar://127.0.0.1:6650"
DEFAULT_ADMIN_URL = "http://127.0.0.1:8080"


@app.callback()
def _group() -> None:
    """Moves topics of Heliograph, or of any Pulsar, with Spark. Each command ends with one line of JSON on stdout."""


def file_bytes(text: str) -> int:
    """Return ``--file-size`` in bytes. Raises :class:`typer.BadParameter`."""
    try:
        size = parse_size(text)
    except InvalidSize:
        size = 0
    if size <= 0:
        raise typer.BadParameter(
            f"{text!r} is not a size of files; valid: 128Mi, 1G or a number of bytes, above zero",
            param_hint="'--file-size'",
        )
    return size


def grace_ms(text: str) -> int:
    """Return ``--day-complete-after`` in ms, -1 for no marks. Raises :class:`typer.BadParameter`."""
    try:
        return parse_duration(text)
    except InvalidDuration as error:
        raise typer.BadParameter(str(error), param_hint="'--day-complete-after'") from error


@app.command("archive")
def archive_command(
    path: Annotated[str, typer.Option(help="Directory of the archive, on any file system that Hadoop knows.")],
    topic: Topics = None,
    topics_pattern: TopicsPattern = None,
    format: Annotated[str, typer.Option(help="Format of the files: parquet.")] = "parquet",
    subscription: Annotated[
        str, typer.Option(help="Durable subscription that keeps messages until they are archived.")
    ] = "heliograph-archive",
    checkpoint: Annotated[str | None, typer.Option(help="Directory of its state; else PATH/_checkpoint.")] = None,
    file_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Approximate size of a file: 128Mi, 1G or bytes.")
    ] = "128Mi",
    day_complete_after: Annotated[
        str,
        typer.Option(metavar="DURATION", help="Time from a day's end to its mark _SUCCESS; infinite for no marks."),
    ] = "1h",
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
    """Write topics up to their heads into Parquet, every message once, and acknowledge what is written."""
    from .jobs.archive import ArchiveOptions, archive

    if format != "parquet":
        raise typer.BadParameter(f"{format!r} is not known; there is parquet", param_hint="'--format'")
    options = ArchiveOptions(
        broker=Broker(service_url, admin_url, pairs("--option", option)),
        topics=tuple(topic or ()),
        pattern=topics_pattern,
        path=path,
        subscription=subscription,
        checkpoint=checkpoint,
        file_bytes=file_bytes(file_size),
        day_complete_after_ms=grace_ms(day_complete_after),
    )

    def work(spark: SparkSession) -> Result:
        if metrics_port is not None:
            serve_metrics(spark, metrics_port)
        return archive(spark, options)

    run_job("archive", SessionOptions(master, pairs("--conf", conf)), result, work)


@app.command("replay")
def replay_command(
    path: Annotated[str, typer.Option(help="Directory of the archive.")],
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="Topic that was archived.")],
    to: Annotated[str, typer.Option(metavar="TOPIC", help="Topic to send to.")],
    begin: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="First publish time: ISO 8601 or ms since 1970.")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="End of the publish times, excluded.")
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

    def work(spark: SparkSession) -> Result:
        options = ReplayOptions(
            broker=Broker(service_url, admin_url, pairs("--option", option)),
            path=path,
            topic=topic,
            to=to,
            from_ms=None if begin is None else parse_moment("--from", begin),
            until_ms=None if end is None else parse_moment("--until", end),
            rate=rate,
            speed=speed,
            producer_name=producer_name,
            order="publish" if order == "publish" else "event",
            keys=tuple(key or ()),
            properties=pairs("--property", with_property),
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
        str | None, typer.Option("--archive", metavar="PATH", help="Archive whose messages are counted as well.")
    ] = None,
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
    )
    run_job("usage", SessionOptions(master, pairs("--conf", conf)), result, lambda spark: usage(spark, options))


@app.command("compact")
def compact_command(
    path: Annotated[str, typer.Option(help="Directory of the archive.")],
    to: Annotated[str, typer.Option(help="Directory of the tables, one for each topic.")],
    topic: Topics = None,
    master: Master = None,
    conf: Conf = None,
    result: ResultFile = None,
) -> None:
    """Make a table of the last value of each key of archived topics; without --topic, of all topics in the archive."""
    from .jobs.compact import CompactOptions, compact

    options = CompactOptions(path=path, to=to, topics=tuple(topic or ()))
    run_job("compact", SessionOptions(master, pairs("--conf", conf)), result, lambda spark: compact(spark, options))


def main() -> None:
    app()


if __name__ == "__main__":
    main()
