"""Runs ``heliograph-spark`` as ``python -m heliograph_spark JOB …`` or ``spark-submit PATH/__main__.py JOB …``."""

from __future__ import annotations

import sys
from pathlib import Path

#: The packages of the extras, which the data source alone does not need.
_EXTRAS = {
    "matplotlib": "jobs",
    "pandas": "jobs",
    "typer": "jobs",
    "pyiceberg": "jobs,iceberg",
    "sqlalchemy": "jobs,iceberg",
}


def main() -> None:
    """Run the command. Ends the process with 1 and the reason if a package is missing, or Spark is too old."""
    from heliograph_spark.plan.errors import PulsarSourceError

    try:
        from heliograph_spark.cli import main as command

        command()
    except PulsarSourceError as error:
        print(f"heliograph-spark: {error}", file=sys.stderr)
        sys.exit(1)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(error.name or "")
        if extra is None:
            raise
        print(f"heliograph-spark: {error.name} is missing: pip install 'heliograph-spark[{extra}]'", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    # Started by its path, this package's directory comes first, where its modules hide others of the same names.
    if not __package__ and sys.path and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
        del sys.path[0]
    main()
