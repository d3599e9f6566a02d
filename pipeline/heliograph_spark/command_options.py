"""The options that several commands of ``heliograph-spark`` have, and how their values are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from heliograph_api.values.durations import InvalidDuration, parse_duration
from heliograph_api.values.sizes import InvalidSize, parse_size

from heliograph_spark.jobs.archiving.options import Tables
from heliograph_spark.run.session import pairs

ServiceUrl = Annotated[
    str,
    typer.Option(
        "--service-url", envvar="HELIOGRAPH_SERVICE_URL", metavar="URL", help="The broker's address for clients."
    ),
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
    typer.Option(
        metavar="URL",
        help="Spark master, such as local[2]; else from SPARK_MASTER or Spark's own settings, else local[*].",
    ),
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
ArchivePath = Annotated[
    str | None, typer.Option(metavar="DIR", help="Directory of an archive in files; or else --catalog.")
]
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
