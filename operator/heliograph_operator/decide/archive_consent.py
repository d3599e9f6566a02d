"""Whether a Topic may have its archive: people who may write Topics could otherwise run any pod beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from heliograph_api.resources.archive_consent_spec import ArchivesSpec
from heliograph_api.resources.archive_spec import LOCAL, ArchiveSpec
from heliograph_api.values.quoting import quoted
from pydantic import ValidationError

from heliograph_operator.objects.kinds import Body

#: Settings of Spark that are a matter of size and speed, or of how a bucket is addressed.
_HARMLESS: Final = frozenset(
    {
        "spark.default.parallelism",
        "spark.driver.cores",
        "spark.driver.memory",
        "spark.driver.memoryOverhead",
        "spark.executor.cores",
        "spark.executor.instances",
        "spark.executor.memory",
        "spark.executor.memoryOverhead",
        "spark.executor.pyspark.memory",
        "spark.hadoop.fs.s3a.endpoint.region",
        "spark.hadoop.fs.s3a.path.style.access",
        "spark.kubernetes.executor.deleteOnTermination",
        "spark.kubernetes.executor.enableApiWatcher",
        "spark.kubernetes.executor.limit.cores",
        "spark.kubernetes.executor.request.cores",
        "spark.sql.shuffle.partitions",
    }
)
#: The values that those have: nothing that could be more than one word of a command line.
_WORD: Final = re.compile("[0-9A-Za-z._-]{1,63}")
_SWITCH: Final = "spec.archives.enabled"


def consent_of(cluster: Body | None) -> ArchivesSpec:
    """Return what a BrokerCluster allows; nothing if it is gone, or has what this operator does not understand."""
    given = ((cluster or {}).get("spec") or {}).get("archives") or {}
    try:
        return ArchivesSpec.model_validate(given)
    except ValidationError:
        return ArchivesSpec()


def refusal(spec: ArchiveSpec | None, consent: ArchivesSpec, cluster: str) -> str:
    """Return why a BrokerCluster does not allow an archive, empty if it does; None: one whose spec is not valid.

    The text names each field with its value and what is allowed.
    """
    if not consent.enabled:
        return f"BrokerCluster {cluster} allows no archives; valid: {_SWITCH}: true there, with what they may use"
    if spec is None:
        return ""
    return "; ".join(
        f"spec.archive.{field}: BrokerCluster {cluster} does not allow {quoted(value)} (spec.archives.{names});"
        f" valid: {valid}"
        for field, value, names, valid in _forbidden(spec, consent)
    )


def _forbidden(spec: ArchiveSpec, consent: ArchivesSpec) -> Iterator[tuple[str, str, str, str]]:
    """Yield field, value, the field of the consent, and what is valid."""
    secret, volume = spec.secret_ref, spec.volume_claim_ref
    named = (
        ("image", spec.image, "images", consent.images, "leave it out"),
        ("serviceAccountName", spec.service_account_name, "serviceAccounts", consent.service_accounts, "leave it out"),
        ("secretRef.name", secret.name if secret else None, "secrets", consent.secrets, "leave it out"),
        ("volumeClaimRef.name", volume.name if volume else None, "volumeClaims", consent.volume_claims, ""),
    )
    for field, value, names, allowed, otherwise in named:
        if value is not None and value not in allowed:
            yield field, value, names, _or(allowed, otherwise) or f"leave it out, or {_added(names)}"
    if not any(_is_within(spec.path, each) for each in consent.paths):
        yield (
            "path",
            spec.path,
            "paths",
            _or([f"{each.rstrip('/')}/…" for each in consent.paths], "") or _added("paths"),
        )
    if not spec.master.startswith("local") and spec.master not in consent.masters:
        yield "master", spec.master, "masters", _or(consent.masters, LOCAL)
    for name, value in sorted(spec.conf.items()):
        if any(_covers(each, name) for each in consent.conf):
            continue
        if name not in _HARMLESS:
            yield f"conf.{name}", value, "conf", _or(consent.conf, "settings of memory and cores")
        elif not _WORD.fullmatch(value):
            yield f"conf.{name}", value, "conf", "one word"


def _is_within(path: str, directory: str) -> bool:
    return f"{path.rstrip('/')}/".startswith(f"{directory.rstrip('/')}/")


def _covers(allowed: str, name: str) -> bool:
    return name == allowed or (allowed.endswith(".*") and name.startswith(allowed[:-1]))


def _or(allowed: Sequence[Any], otherwise: str) -> str:
    """Name what is allowed, at most five items; empty if it is nothing."""
    items = [quoted(str(each)) for each in allowed[:5]]
    if len(allowed) > 5:
        items.append(f"{len(allowed) - 5} more")
    return ", ".join([*items, otherwise] if otherwise else items)


def _added(names: str) -> str:
    return f"add it to spec.archives.{names} of the BrokerCluster"
