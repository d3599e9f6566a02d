"""``heliograph backup push|pull|verify|list|delete``: backups in an S3-compatible store or on another volume."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from heliograph_api.values.readable import readable_size

from heliograph_broker.cli.base.shared_options import DEFAULT_HTTP_URL, CliError, HttpUrl, call_broker

if TYPE_CHECKING:
    from heliograph_broker.offsite.catalog import BackupRecord
    from heliograph_broker.offsite.object_store import ObjectStore
    from heliograph_broker.offsite.pull import Origin

#: Time (s) between two lines about the progress of an upload.
_REPORT_S = 10.0

StoreUrl = Annotated[
    str, typer.Argument(metavar="URL", help="URL of the backups: s3://BUCKET/PREFIX or file:///DIRECTORY.")
]
BackupName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the backup: lower-case letters, digits, - and dots.")
]
Endpoint = Annotated[
    str,
    typer.Option(
        "--endpoint",
        envvar="AWS_ENDPOINT_URL",
        metavar="URL",
        help="URL of the S3-compatible store; default: Amazon's.",
    ),
]
VirtualHosted = Annotated[
    bool, typer.Option("--virtual-hosted", help="Name the bucket in the host name, not in the path.")
]
CaFile = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        envvar="HELIOGRAPH_S3_CA_FILE",
        metavar="FILE",
        help="Certificates (PEM) to trust beside those of the system.",
    ),
]
Result = Annotated[
    Path | None,
    typer.Option("--result", metavar="FILE", help="File to write the result or the error to, as a JSON object."),
]


def push(
    url: StoreUrl,
    name: BackupName,
    http_url: HttpUrl = DEFAULT_HTTP_URL,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="NAME",
            help="Name of the broker, not used by another one below URL; unfinished uploads of this name are deleted."
            " Default: the id of the broker's store, which a copy of the store has, too.",
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Succeed if this backup is complete already, from an earlier attempt.")
    ] = False,
    check: Annotated[
        Path | None,
        typer.Option(
            "--verify",
            metavar="DIR",
            help="Restore the backup into the empty directory DIR, verify it, and empty DIR again.",
        ),
    ] = None,
    endpoint: Endpoint = "",
    virtual_hosted: VirtualHosted = False,
    ca_file: CaFile = None,
    result: Result = None,
) -> None:
    """Upload a backup of a running broker, in parts, while it keeps serving.

    Keys and region come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_REGION (default:
    us-east-1). An interrupted upload is not a backup; the next push with the same source deletes its parts.

    \b
    Examples:
      heliograph backup push s3://backups/orders monday --endpoint https://s3.example.com
      heliograph backup push file:///mnt/backups monday
    """
    from heliograph_broker.offsite.push import push as upload

    with _reported(result) as answer, _errors():
        store = _store(url, endpoint, virtual_hosted, ca_file)
        progress = _progress()
        record = call_broker(http_url, lambda client: upload(client, store, name, source, progress, again=again))
        answer.update(_fields(store, record))
        if check is not None:
            answer["verifiedMs"] = _verified(store, record, check)
    print(f"{store.url}/{name}: {_summary(record)}")
    for line in record.damaged:
        print(f"heliograph: damaged in the store when this backup was made: {line}", file=sys.stderr)


def pull(
    url: StoreUrl,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Name of the backup, or latest: the newest one whose verification did not fail."
        ),
    ],
    data_dir: Annotated[
        Path,
        typer.Option("--data-dir", metavar="DIR", help="Data directory to write to; must be empty or not exist yet."),
    ],
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Do nothing after a complete restore into DIR; begin again after an interrupted one."
        ),
    ] = False,
    endpoint: Endpoint = "",
    virtual_hosted: VirtualHosted = False,
    ca_file: CaFile = None,
    result: Result = None,
) -> None:
    """Restore a backup into a data directory that 'heliograph standalone' can start on.

    Every part and every file is verified by its checksum. A directory with data is never changed.

    \b
    Examples:
      heliograph backup pull s3://backups/orders monday --data-dir heliograph-data
      heliograph backup pull s3://backups/orders latest --data-dir heliograph-data
    """
    from heliograph_broker.offsite.pull import bootstrap, restored_from
    from heliograph_broker.offsite.pull import pull as fetch

    with _reported(result) as answer, _errors():
        # Once restored, a broker starts whether or not the store can be reached.
        if once and (origin := restored_from(data_dir)) is not None:
            answer.update(_origin_fields(origin))
            print(f"{data_dir}: restored before, from {origin.url}/{origin.name}")
            return
        store = _store(url, endpoint, virtual_hosted, ca_file)
        record, warnings = _to_restore(store, name, data_dir if once else None)
        if once:
            data_dir.mkdir(parents=True, exist_ok=True)
            answer.update(_origin_fields(bootstrap(store, record, data_dir)))
        else:
            fetch(store, record, data_dir)
            answer.update(_fields(store, record))
    print(f"{data_dir}: {_summary(record)}")
    for line in warnings:
        print(f"heliograph: {line}", file=sys.stderr)


def verify(
    url: StoreUrl,
    name: BackupName,
    scratch: Annotated[
        Path, typer.Option("--scratch", metavar="DIR", help="Empty directory to restore into; it is emptied again.")
    ],
    endpoint: Endpoint = "",
    virtual_hosted: VirtualHosted = False,
    ca_file: CaFile = None,
) -> None:
    """Restore a backup into scratch space and compare it: all checksums, and the list of topics and subscriptions.

    The result is recorded beside the backup: 'pull URL latest' leaves out one whose last verification failed.

    \b
    Examples:
      heliograph backup verify s3://backups/orders monday --scratch /tmp/scratch
    """
    from heliograph_broker.offsite import catalog

    with _errors():
        store = _store(url, endpoint, virtual_hosted, ca_file)
        record = catalog.get(store, name)
        _verified(store, record, scratch)
    print(f"{store.url}/{name}: verified, {_summary(record)}")


def list_backups(
    url: StoreUrl, endpoint: Endpoint = "", virtual_hosted: VirtualHosted = False, ca_file: CaFile = None
) -> None:
    """List the backups below a URL, oldest first, with the result of their verification, and the interrupted uploads.

    \b
    Examples:
      heliograph backup list s3://backups/orders
    """
    from heliograph_broker.offsite import catalog
    from heliograph_broker.offsite.verification_results import result_text

    with _errors():
        store = _store(url, endpoint, virtual_hosted, ca_file)
        complete, interrupted = catalog.names(store)
        records: list[BackupRecord] = []
        results: dict[str, str] = {}
        unreadable: list[str] = []
        for each in complete:
            try:
                record = catalog.find(store, each)
            except catalog.UnreadableManifestError:
                unreadable.append(each)
                continue
            # None if somebody has deleted it since.
            if record is not None:
                records.append(record)
                results[each] = result_text(store, each, record.upload)
    for record in sorted(records, key=lambda each: (each.point_in_time_ms, each.name)):
        result = f", {results[record.name]}" if results[record.name] else ""
        print(f"{record.name}  {_summary(record)}{result}")
    for each in unreadable:
        print(f"{each}  its manifest.json cannot be read, not a backup")
    for each in interrupted:
        print(f"{each}  interrupted, not a backup")


def delete(
    url: StoreUrl,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of the backups.")],
    endpoint: Endpoint = "",
    virtual_hosted: VirtualHosted = False,
    ca_file: CaFile = None,
) -> None:
    """Delete backups, complete or interrupted. A name that does not exist is no error.

    \b
    Examples:
      heliograph backup delete s3://backups/orders monday tuesday
    """
    from heliograph_broker.offsite import catalog

    with _errors():
        store = _store(url, endpoint, virtual_hosted, ca_file)
        for name in names:
            found = catalog.delete(store, name)
            print(f"{store.url}/{name}: {'deleted' if found else 'there is none'}")


def _store(url: str, endpoint: str, virtual_hosted: bool, ca_file: Path | None) -> ObjectStore:
    from heliograph_broker.offsite.object_store import Access, ObjectStore

    return ObjectStore(url, Access(endpoint, not virtual_hosted, ca_file))


def _to_restore(store: ObjectStore, name: str, begun_in: Path | None) -> tuple[BackupRecord, list[str]]:
    """Return the record of a backup, with warnings about verifications that failed.

    For ``latest``, it is the one that was begun in ``begun_in``, or else the newest.
    """
    from heliograph_broker.offsite import catalog
    from heliograph_broker.offsite.pull import begun
    from heliograph_broker.offsite.verification_results import failure_of

    if name != catalog.LATEST:
        record = catalog.get(store, name)
        failed = failure_of(store, name, record.upload)
        return record, [f"the verification of backup {name} failed: {failed.problem}"] if failed is not None else []
    before = begun(begun_in) if begun_in is not None else ""
    found = catalog.find(store, before) if before else None
    if found is not None and failure_of(store, before, found.upload) is None:
        return found, []
    record, left_out = catalog.latest(store)
    return record, [
        f"backup {each} is left out, because its verification failed: {failed.problem}"
        for each, failed in left_out.items()
    ]


def _verified(store: ObjectStore, record: BackupRecord, scratch: Path) -> int:
    from heliograph_broker.offsite.verify import verify as restore_and_compare

    if scratch.exists() and any(scratch.iterdir()):
        raise CliError(f"{scratch} is not empty; name an empty directory")
    directory = scratch / "restored"
    try:
        return restore_and_compare(store, record, directory).verified_ms
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _errors() -> Iterator[None]:
    from heliograph_broker.offsite.object_store import StoreError
    from heliograph_broker.storage.copies.backup import BackupError

    try:
        yield
    except (StoreError, BackupError) as error:
        raise CliError(str(error)) from error


@contextmanager
def _reported(path: Path | None) -> Iterator[dict[str, Any]]:
    """Yield the fields of the result, and write them to ``path``; an error is a field, too."""
    answer: dict[str, Any] = {}
    try:
        yield answer
    except CliError as error:
        answer["error"] = str(error)
        raise
    finally:
        if path is not None and answer:
            path.write_text(json.dumps(answer))


def _progress() -> Callable[[int], None]:
    shown = time.monotonic()

    def show(sent: int) -> None:
        nonlocal shown
        if time.monotonic() - shown >= _REPORT_S:
            shown = time.monotonic()
            print(f"{readable_size(sent)} bytes uploaded", flush=True)

    return show


def _fields(store: ObjectStore, record: BackupRecord) -> dict[str, Any]:
    return {
        "url": store.url,
        "name": record.name,
        "pointInTimeMs": record.point_in_time_ms,
        "completedMs": record.completed_ms,
        "bytes": record.size,
        "parts": len(record.parts),
        "topics": len(record.topics),
        "version": record.version,
        "damaged": len(record.damaged),
    }


def _origin_fields(origin: Origin) -> dict[str, Any]:
    return {
        "url": origin.url,
        "name": origin.name,
        "pointInTimeMs": origin.point_in_time_ms,
        "completedMs": origin.completed_ms,
        "bytes": origin.size,
        "version": origin.version,
    }


def _summary(record: BackupRecord) -> str:
    at = datetime.fromtimestamp(record.point_in_time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return (
        f"{len(record.topics)} topics, {record.size:,} bytes in {len(record.parts)} parts, as of {at}"
        f" (heliograph {record.version})"
    )
