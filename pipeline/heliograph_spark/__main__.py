"""Runs ``heliograph-spark`` as ``python -m heliograph_spark JOB …`` or ``spark-submit PATH/__main__.py JOB …``."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Run the command. Ends the process with 1 and the reason if a package is missing, or Spark is too old."""
    from heliograph_spark.plan.errors import PulsarSourceError
    from heliograph_spark.plan.extras import missing_package

    try:
        from heliograph_spark.cli import main as command

        command()
    except PulsarSourceError as error:
        print(f"heliograph-spark: {error}", file=sys.stderr)
        sys.exit(1)
    except ModuleNotFoundError as error:
        if (advice := missing_package(error)) is None:
            raise
        print(f"heliograph-spark: {advice}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    # Started by its path, this package's directory comes first, where its modules hide others of the same names.
    if not __package__ and sys.path and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
        del sys.path[0]
    main()
