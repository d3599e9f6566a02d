"""Services of Pulsar that this broker does not have: each call of them is refused with what is missing."""

from __future__ import annotations

import re

#: Paths with the status and the reason. The statuses are those of a Pulsar in which the service is not enabled.
_CLUSTER = "/admin/v2/clusters/[^/]+"
_OF_ITS_OWN = "this broker is a cluster of its own"
_SERVICES = (
    ("/admin/v[23]/(functions|sources?|sinks?|worker|worker-stats)(/.*)?", 409,
     "Functions, sources and sinks are not run here"),
    ("/admin/v3/packages/.*", 503, "There is no package management: functions are not run here"),
    ("/admin/v3/transactions/.*", 503, "There is no transaction coordinator: transactions are not supported"),
    ("/admin/v2/metadata/migration/start", 412, "There is no metadata store: nothing can be moved"),
    ("/admin/v2/bookies/.*", 412, "There are no bookies: the broker stores messages itself"),
    (f"{_CLUSTER}/migrate", 412, f"Clusters cannot be migrated: {_OF_ITS_OWN}"),
    ("/admin/v2/namespaces/[^/]+/[^/]+/migration", 412, f"Namespaces cannot be migrated: {_OF_ITS_OWN}"),
)  # fmt: skip
_PATTERNS = tuple((re.compile(path), status, reason) for path, status, reason in _SERVICES)


def absent_service(path: str) -> tuple[int, str] | None:
    """Return the status and the reason of a call to a service that is not there, None if the path is of none."""
    return next(((status, reason) for pattern, status, reason in _PATTERNS if pattern.fullmatch(path)), None)
