"""Authentication by user and password, from a file of bcrypt hashes."""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

import bcrypt
import structlog
from heliograph_api.broker_config import BrokerConfig

from heliograph_broker.clock import Clock
from heliograph_broker.security.identity import Identity

from .htpasswd import MAX_FILE_BYTES, InvalidHtpasswd, StandIns, parse_htpasswd
from .provider import Credentials, Provider, ProviderUnusable, Unauthenticated

log = structlog.get_logger(__name__)

#: bcrypt reads no more bytes of a password. A longer one would be another one's with the same beginning.
MAX_PASSWORD_BYTES: Final = 72
#: Time (s) after which a changed file is noticed at the latest, when somebody authenticates.
RECHECK_S: Final = 1.0
#: Passwords that wait for their check; further ones are refused at once.
MAX_WAITING: Final = 64
_INVALID: Final = "the user or the password is wrong"


class BasicProvider(Provider):
    """Method ``basic``: the data is ``user:password``, the role is the user.

    Passwords are checked in ``at_a_time`` threads, so that a flood of them takes no more cores than that. A password
    that was right is remembered by a keyed digest for as long as the user's hash is the same: clients that are known,
    and each request by HTTP, need not wait for the others' hashes.
    """

    method = "basic"

    def __init__(self, path: Path, clock: Clock, *, at_a_time: int | None = None) -> None:
        """Reads the file. Raises :class:`ProviderUnusable` if it cannot be read or is not valid."""
        self._path = path
        self._clock = clock
        self._threads = ThreadPoolExecutor(at_a_time or _half_the_cores(), thread_name_prefix="basic")
        self._waiting = 0
        self._version = self._file_version()
        try:
            self._hashes = self._read()
        except (OSError, InvalidHtpasswd) as error:
            raise ProviderUnusable(f"basic_file: {_reason(path, error)}") from None
        self._secret = os.urandom(32)
        self._stand_ins = StandIns(self._hashes, self._secret)
        self._checked_at = clock.monotonic()
        self._reading: asyncio.Task[None] | None = None
        self._right: dict[str, bytes] = {}
        self._withdrawals = 0
        #: Reads of a changed file that failed, since the start.
        self.failures = 0

    @classmethod
    def from_config(cls, config: BrokerConfig, clock: Clock) -> Self:
        """Read the file that the settings name, which blocks. Raises :class:`ProviderUnusable` naming what is wrong."""
        if not config.basic_file:
            raise ProviderUnusable("basic_file: missing; valid: a file that htpasswd -B has written")
        return cls(Path(config.basic_file), clock)

    @property
    def withdrawals(self) -> int:
        """Changes of the file that removed a user or a password."""
        return self._withdrawals

    async def refresh(self) -> None:
        """Read the file again if it has changed; if that fails, the users that are known stay.

        One read is under way at a time, so that none brings back what another one has replaced, and it takes effect
        though the caller is cancelled.
        """
        now = self._clock.monotonic()
        if now - self._checked_at < RECHECK_S:
            return
        if self._reading is None:
            self._checked_at = now
            self._reading = asyncio.create_task(self._read_again())
        await asyncio.shield(self._reading)

    async def _read_again(self) -> None:
        try:
            version = await asyncio.to_thread(self._file_version)
            if version != self._version:
                await self._read_changed(version)
        finally:
            self._reading = None

    async def _read_changed(self, version: tuple[int, ...]) -> None:
        try:
            changed = await asyncio.to_thread(self._read)
        except (OSError, InvalidHtpasswd) as error:
            if isinstance(error, FileNotFoundError | InvalidHtpasswd):
                # Not before it changes. Other errors pass by themselves, and then a user may be gone.
                self._version = version
            self.failures += 1
            log.error("could not read the file of users; those that are known stay", error=_reason(self._path, error))
            return
        gone = {user for user, hashed in self._hashes.items() if changed.get(user) != hashed}
        self._withdrawals += bool(gone)
        self._right = {user: digest for user, digest in self._right.items() if user not in gone}
        self._version, self._hashes, self._stand_ins = version, changed, StandIns(changed, self._secret)
        log.info("read the file of users", path=str(self._path), users=len(changed))

    async def authenticate(self, credentials: Credentials) -> Identity:
        await self.refresh()
        name, separator, password = credentials.data.partition(b":")
        try:
            user = name.decode()
        except UnicodeDecodeError:
            user = ""
        if not separator or not user or not password or len(password) > MAX_PASSWORD_BYTES or b"\0" in password:
            raise Unauthenticated(
                f"{_INVALID}; valid: USER:PASSWORD with a password of 1 to {MAX_PASSWORD_BYTES} bytes",
                "the data of method basic is not USER:PASSWORD",
            )
        hashed = self._hashes.get(user)
        checked = hashed or self._stand_ins.for_user(user)
        digest = hmac.digest(checked, password, "sha256")
        if hashed is None or not hmac.compare_digest(self._right.get(user, b""), digest):
            is_right = await self._check(password, checked)
            if hashed is None or not is_right:
                raise Unauthenticated(
                    _INVALID, "a user is unknown" if hashed is None else f"a wrong password of {user}"
                )
            if self._hashes.get(user) != hashed:
                raise Unauthenticated(_INVALID, f"the password of {user} was replaced while it was checked")
            self._right[user] = digest
        return Identity(user, self.method)

    async def _check(self, password: bytes, hashed: bytes) -> bool:
        if self._waiting >= MAX_WAITING:
            raise Unauthenticated("too many passwords wait to be checked: try again later")
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, bcrypt.checkpw, password, hashed)
        finally:
            self._waiting -= 1

    def _read(self) -> Mapping[str, bytes]:
        with self._path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise InvalidHtpasswd(f"it has more than {MAX_FILE_BYTES} bytes")
        return parse_htpasswd(content)

    def _file_version(self) -> tuple[int, ...]:
        """Return what changes with the file's content; empty: there is none."""
        try:
            status = os.stat(self._path)
        except OSError:
            return ()
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size

    async def close(self) -> None:
        """End the threads once they are done with their passwords, and a read of the file."""
        if self._reading is not None:
            self._reading.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _half_the_cores() -> int:
    return max(1, (os.cpu_count() or 1) // 2)


def _reason(path: Path, error: OSError | InvalidHtpasswd) -> str:
    return f"{path}: {error.strerror if isinstance(error, OSError) else error}"
