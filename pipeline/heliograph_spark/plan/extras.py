"""The packages of the distribution's extras, which the data source alone does not need."""

from __future__ import annotations

_EXTRAS = {
    "matplotlib": "jobs",
    "pandas": "jobs",
    "typer": "jobs",
    "pyiceberg": "jobs,iceberg",
    "sqlalchemy": "jobs,iceberg",
    "prometheus_client": "metrics",
}


def missing_package(error: ModuleNotFoundError) -> str | None:
    """Return which package of an extra is missing and how to install it; None if the module is of none."""
    package = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(package)
    return None if extra is None else f"{package} is missing: pip install 'heliograph-spark[{extra}]'"
