"""The packages of the distribution's extras, which the data source alone does not need."""

from __future__ import annotations

_EXTRAS = {
    "matplotlib": "jobs",
    "pandas": "jobs",
    "typer": "jobs",
    "pyiceberg": "jobs,iceberg",
    "sqlalchemy": "jobs,iceberg",
    "obstore": "jobs,connect",
    "prometheus_client": "metrics",
}


def missing_package(error: ModuleNotFoundError) -> str | None:
    """Return which package is missing and how to install it, of an extra or Spark; None for any other module."""
    package = (error.name or "").partition(".")[0]
    if package == "pyspark":
        return "Spark is missing: pip install 'pyspark>=4.0,<4.4', or start the command by spark-submit"
    extra = _EXTRAS.get(package)
    return None if extra is None else f"{package} is missing: pip install 'heliograph-spark[{extra}]'"
