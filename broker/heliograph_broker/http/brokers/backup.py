"""GET /heliograph/v1/backup: everything the broker keeps, as one tar, while it goes on serving."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from aiohttp import web
from heliograph_api import __version__

from heliograph_broker.http.base.context import BROKER, committed
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.operations import Media, Refusal, operation
from heliograph_broker.security.authorization.needs import Need
from heliograph_broker.storage.copies.backup import Backup, BackupError

log = structlog.get_logger(__name__)


class Running(set[asyncio.Task[Any]]):
    """The requests that are being answered with a backup."""


RUNNING: web.AppKey[Running] = web.AppKey("backups", Running)

_TAR = "application/x-tar"
#: A client that reads nothing for this time (s) is dropped: the files of a backup that nobody fetches would stay
#: forever (s).
_STALLED_S = 60.0


@operation(
    "Get all data of the broker at the time of the request, as a tar for 'heliograph restore'.",
    answers={200: Media((_TAR,), bytes), 409: Refusal, 503: Refusal},
    needs=Need.BACKUP,
)
async def get_backup(request: web.Request) -> web.StreamResponse:
    """Stream a backup: a part is made once the client has taken the previous one, so little of it is in memory.

    A failure on the way breaks the connection off: the client sees that the answer did not end.
    """
    broker = request.app[BROKER]
    # Acknowledgements that asked for no receipt are not waiting to be written then, and the copy's counts are exact.
    broker.record_writer.flush()
    await committed(broker, ())
    begun_ms = broker.clock.now_ms()
    try:
        backup = broker.store.backup(__version__, begun_ms)
    except BackupError as error:
        raise ApiError(409, str(error)) from error
    task = asyncio.current_task()
    assert task is not None
    request.app[RUNNING].add(task)
    try:
        return await _stream(request, backup, begun_ms)
    finally:
        request.app[RUNNING].discard(task)
        backup.close()


async def _stream(request: web.Request, backup: Backup, begun_ms: int) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": _TAR})
    response.headers["Content-Disposition"] = f'attachment; filename="heliograph-{begun_ms}.tar"'
    await response.prepare(request)
    sent = 0
    log.info("backup begun")
    try:
        while part := await asyncio.to_thread(backup.read):
            async with asyncio.timeout(_STALLED_S):
                await response.write(part)
            sent += len(part)
        await response.write_eof()
    except (BackupError, ConnectionError, TimeoutError, OSError) as error:
        log.warning("backup broken off", sent_bytes=sent, error=str(error) or type(error).__name__)
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionAbortedError("the backup did not end") from error
    log.info("backup complete", sent_bytes=sent)
    return response


async def end_running(app: web.Application) -> None:
    """Break off running backups, because the broker stops."""
    running = app[RUNNING]
    for task in list(running):
        task.cancel()


def routes() -> list[web.RouteDef]:
    # A HEAD would make a whole backup for nobody.
    return [web.get("/heliograph/v1/backup", get_backup, allow_head=False)]
