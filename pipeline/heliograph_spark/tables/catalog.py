"""The catalog of Iceberg tables: it names the current metadata of each table and replaces it at one moment.

Iceberg's runtime for Spark is built for single releases of Spark, and none exists for those that the pipeline runs on
(the newest is for 4.1). So Spark writes the data files and :mod:`pyiceberg` commits them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyarrow import ArrowException
from pyiceberg import exceptions
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException
from sqlalchemy.exc import SQLAlchemyError

from heliograph_spark.plan.bucket_errors import with_advice
from heliograph_spark.plan.errors import JobError

#: Errors that catalogs, tables and their files raise; they have no common base. Those of HTTP and of file systems are
#: an OSError. That of a REST catalog without an operation is a NotImplementedError, that of a date or time after the
#: year 9999, which Python has not, an OverflowError; those of a damaged file are an EOFError, or zlib's; that of a
#: package which a catalog's property asks for and which is not there, an ImportError.
_REFUSALS = (
    OSError,
    ImportError,
    ValueError,
    TypeError,
    NotImplementedError,
    OverflowError,
    EOFError,
    zlib.error,
    ArrowException,
    UnsupportedPyArrowTypeException,
    SQLAlchemyError,
    *(each for each in vars(exceptions).values() if isinstance(each, type) and issubclass(each, Exception)),
)


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Turn the errors of catalogs and tables into :class:`JobError`, with ``what`` was asked for and the reason."""
    try:
        yield
    except _REFUSALS as error:
        lines = str(error).strip().splitlines()
        raise JobError(f"{what}: {with_advice(lines[0]) if lines else type(error).__name__}") from error


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Return the catalog of a name; pyiceberg's configuration adds the properties that are not given.

    Raises :class:`JobError` if they are not those of a catalog, or if it does not answer.
    """
    for key, value in properties.items():
        # The error of an HTTP header shows all of it, which may be a secret.
        if "\n" in value or "\r" in value:
            raise JobError(f"catalog {name}: property {key!r} has a line break; valid: one line")
    with refusals(f"catalog {name}"):
        return load_catalog(name, **properties)
