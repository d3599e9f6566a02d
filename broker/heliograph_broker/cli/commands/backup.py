"""``heliograph backup`` and ``heliograph restore``: copy a running broker's data, and write the copy back."""

from __future__ import annotations

import os
import sys
import zlib
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heliograph_broker.cli.base.shared_options import DEFAULT_HTTP_URL, CliError, HttpUrl, call_broker, usage_error

from .backup_store import delete, list_backups, pull, push, verify

if TYPE_CHECKING:
    from heliograph_api.admin.admin_client import AdminClient

    from heliograph_broker.storage.copies.backup import Manifest

_PATH = "/heliograph/v1/backup"
#: zlib's name for writing the gzip format, with its largest window.
_GZIP = 16 + zlib.MAX_WBITS


backup_app = typer.Typer(rich_markup_mode=None)
for name, command in (("push", push), ("pull", pull), ("verify", verify), ("list", list_backups), ("delete", delete)):
    backup_app.command(name)(command)


@backup_app.callback(invoke_without_command=True)
def backup(
    context: typer.Context,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="File to write, a tar; compressed if its name ends in .gz or .tgz."
        ),
    ] = None,
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """Copy all data of a running broker into one file, while it keeps serving; a command copies it to a store.

    Every message whose receipt was sent before the backup began is in it. The file gets its name once it is complete,
    synced and read back from end to end; a file of that name from before is kept until then.

    \b
    Examples:
      heliograph backup -o monday.tar.gz
      heliograph backup -o monday.tar --http-url http://broker:8080
    """
    if context.invoked_subcommand is not None:
        return
    if output is None:
        usage_error("missing option -o FILE, or a command: push, pull, verify, list or delete")
    from heliograph_broker.storage.copies.backup import BackupError
    from heliograph_broker.storage.copies.restore import check

    partial = output.with_name(output.name + ".partial")
    try:
        call_broker(http_url, lambda client: _fetch(client, partial, compress=output.suffix in (".gz", ".tgz")))
        manifest = check(partial)
        partial.rename(output)
        _sync(output.parent)
    except BackupError as error:
        raise CliError(str(error)) from error
    except OSError as error:
        raise CliError(f"cannot write {output}: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    print(f"{output}: {_summary(manifest)}")
    _warn(manifest)


def restore(
    archive: Annotated[Path, typer.Argument(metavar="FILE", help="File written by 'heliograph backup'.")],
    data_dir: Annotated[
        Path,
        typer.Option("--data-dir", metavar="DIR", help="Data directory to write to; must be empty or not exist yet."),
    ],
) -> None:
    """Write a backup into a data directory that 'heliograph standalone' can start on.

    Every file is verified by its checksum. If any of them is wrong, nothing is written.

    \b
    Examples:
      heliograph restore monday.tar.gz --data-dir heliograph-data
    """
    from heliograph_broker.storage.copies.backup import BackupError
    from heliograph_broker.storage.copies.restore import restore as restore_into

    try:
        manifest = restore_into(archive, data_dir)
    except BackupError as error:
        raise CliError(str(error)) from error
    print(f"{data_dir}: {_summary(manifest)}")
    _warn(manifest)


async def _fetch(client: AdminClient, path: Path, *, compress: bool) -> None:
    packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP) if compress else None
    with path.open("wb") as file:
        async with aclosing(client.stream(_PATH)) as parts:
            async for part in parts:
                file.write(packer.compress(part) if packer is not None else part)
        if packer is not None:
            file.write(packer.flush())
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    from heliograph_broker.storage.disk.disk import RealDisk

    RealDisk().sync_directory(directory)


def _warn(manifest: Manifest) -> None:
    for line in manifest.damaged:
        print(f"heliograph: damaged in the store when this backup was made: {line}", file=sys.stderr)


def _summary(manifest: Manifest) -> str:
    begun = datetime.fromtimestamp(manifest.begun_ms / 1000, UTC).isoformat(timespec="milliseconds")
    size = sum(file.size for file in manifest.files.values())
    return f"{len(manifest.files)} files, {size:,} bytes, as of {begun} (heliograph {manifest.version})"
