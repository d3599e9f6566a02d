"""Runs ``heliograph-spark`` as ``python -m heliograph_spark JOB …`` or ``spark-submit PATH/__main__.py JOB …``."""

from __future__ import annotations

import sys
from pathlib import Path

#: The packages of the extra `jobs`, which the data source alone does not need.
_OF_JOBS = ("matplotlib", "pandas", "typer")


def main() -> None:
    """Run the command. Ends the process with 1 and the reason if a package of the jobs is missing."""
    try:
        from heliograph_spark.cli import main as command

        command()
    except ModuleNotFoundError as error:
        if error.name not in _OF_JOBS:
            raise
        print(f"heliograph-spark: {error.name} is missing: pip install 'heliograph-spark[jobs]'", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    # Started by its path, this package's directory comes first, where its modules hide others of the same names.
    if not __package__ and sys.path and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
        del sys.path[0]
    main()
