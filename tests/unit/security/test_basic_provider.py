"""Authentication by user and password: what is right, what a flood may take, and files that change."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import bcrypt
import pytest
from heliograph_api.broker_config import BrokerConfig
from heliograph_broker.clock import VirtualClock
from heliograph_broker.security.authentication.basic import MAX_WAITING, BasicProvider
from heliograph_broker.security.authentication.provider import Credentials, ProviderUnusable, Unauthenticated
from heliograph_broker.security.identity import Identity
from hypothesis import given
from hypothesis import strategies as st

from tests.support.polling import eventually_async

WRONG = "the user or the password is wrong"


def line(user: str, password: bytes) -> str:
    return f"{user}:{bcrypt.hashpw(password, bcrypt.gensalt(4)).decode()}\n"


class Users:
    """A file of users, and a provider on virtual time that reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = VirtualClock()
        self.path.write_text(line("billing", b"secret") + line("reports", "grün:".encode()))
        config = BrokerConfig(auth="basic", basic_file=str(path))
        self.provider = BasicProvider.from_config(config, self.clock)

    async def identity(self, data: bytes) -> Identity:
        return await self.provider.authenticate(Credentials(data))

    async def refusal(self, data: bytes) -> str:
        with pytest.raises(Unauthenticated) as caught:
            await self.identity(data)
        assert b"secret" not in (str(caught.value) + caught.value.detail).encode()
        return str(caught.value)

    def replace(self, content: str) -> None:
        """Replace the file as tools do, and let the time pass after which the provider checks it."""
        new = self.path.with_suffix(".new")
        new.write_text(content)
        new.replace(self.path)
        self.clock.advance_ms(1000)


@pytest.fixture
def users(tmp_path: Path) -> Iterator[Users]:
    made = Users(tmp_path / "users")
    yield made
    asyncio.run(made.provider.close())


async def test_the_user_is_the_role(users: Users) -> None:
    assert users.provider.method == "basic"
    assert await users.identity(b"billing:secret") == Identity("billing", "basic")
    # A password may have colons.
    assert await users.identity("reports:grün:".encode()) == Identity("reports", "basic")
    assert await users.identity(b"billing:secret") == Identity("billing", "basic")


async def test_unknown_users_and_wrong_passwords_are_refused_in_the_same_words(users: Users) -> None:
    await users.identity(b"billing:secret")
    assert await users.refusal(b"billing:secret2") == WRONG
    assert await users.refusal(b"nobody:secret") == WRONG
    assert await users.refusal(b"nobody:secret") == WRONG


@pytest.mark.parametrize(
    "data", [b"", b"billing", b":", b"billing:", b":secret", b"\xff:secret", b"billing:a\0b", b"billing:" + b"s" * 73]
)
async def test_other_data_is_refused_without_a_check(
    users: Users, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bcrypt, "checkpw", None)
    assert "valid: USER:PASSWORD with a password of 1 to 72 bytes" in await users.refusal(data)


async def test_an_unknown_user_costs_a_check_as_well(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = []

    def check(password: bytes, hashed: bytes) -> bool:
        checked.append(hashed)
        return True

    monkeypatch.setattr(bcrypt, "checkpw", check)
    # Even a check that succeeds makes nobody of the file out of a user who is not in it.
    assert await users.refusal(b"nobody:secret") == WRONG
    assert [each[:7] for each in checked] == [b"$2b$04$"]


async def test_a_flood_takes_a_thread_and_known_clients_go_on(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    await users.identity(b"billing:secret")
    await users.provider.close()
    provider = users.provider = BasicProvider(users.path, users.clock, at_a_time=1)
    await users.identity(b"billing:secret")
    going_on, running, most = threading.Event(), [0], [0]

    def check(password: bytes, hashed: bytes) -> bool:
        running[0] += 1
        most[0] = max(most[0], running[0])
        going_on.wait(60)
        running[0] -= 1
        return False

    monkeypatch.setattr(bcrypt, "checkpw", check)
    flood = [asyncio.create_task(users.refusal(b"billing:guess")) for _ in range(MAX_WAITING)]
    await asyncio.sleep(0)
    try:
        # The next one is refused at once, and a password that was right before needs no hash.
        assert await users.refusal(b"reports:guess") == "too many passwords wait to be checked: try again later"
        assert await users.identity(b"billing:secret") == Identity("billing", "basic")
        # Clients that are gone make room.
        for task in flood[1:]:
            task.cancel()
        await asyncio.wait(flood[1:])
        later = asyncio.create_task(users.refusal(b"reports:guess"))
    finally:
        going_on.set()
    assert {await flood[0], await later} == {WRONG}
    assert most == [1]
    assert provider.failures == 0


async def test_a_changed_file_is_read_again(users: Users) -> None:
    await users.identity(b"billing:secret")
    users.replace(line("billing", b"another") + line("reports", b"r"))
    assert await users.refusal(b"billing:secret") == WRONG
    assert await users.identity(b"billing:another") == Identity("billing", "basic")
    users.replace(line("reports", b"r"))
    assert await users.refusal(b"billing:another") == WRONG
    assert await users.identity(b"reports:r") == Identity("reports", "basic")


async def test_a_password_that_is_replaced_while_it_is_checked_is_wrong(
    users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    checking, going_on = threading.Event(), threading.Event()

    def check(password: bytes, hashed: bytes) -> bool:
        checking.set()
        return going_on.wait(60)

    monkeypatch.setattr(bcrypt, "checkpw", check)
    asked = asyncio.create_task(users.refusal(b"billing:secret"))
    try:
        await eventually_async(checking.is_set)
        users.replace(line("billing", b"another"))
        await users.provider.refresh()
    finally:
        going_on.set()
    assert await asked == WRONG


class HeldReads:
    """Holds reads of the file of users between their end and what follows it, until :meth:`go_on`."""

    def __init__(self, users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done = 0
        self._going_on = threading.Event()
        read = users.provider._read

        def held() -> Mapping[str, bytes]:
            content = read()
            self.done += 1
            self._going_on.wait(60)
            return content

        monkeypatch.setattr(users.provider, "_read", held)

    def go_on(self) -> None:
        self._going_on.set()


async def test_a_client_that_leaves_while_the_file_is_read_does_not_lose_the_change(
    users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    await users.identity(b"billing:secret")
    reads = HeldReads(users, monkeypatch)
    users.replace(line("billing", b"another"))
    asked = asyncio.create_task(users.identity(b"billing:another"))
    try:
        await eventually_async(lambda: reads.done)
        asked.cancel()
        await asyncio.wait((asked,))
    finally:
        reads.go_on()
    users.clock.advance_ms(1000)
    assert await users.refusal(b"billing:secret") == WRONG
    assert users.provider.withdrawals == 1


async def test_a_slow_read_does_not_bring_back_what_was_replaced_meanwhile(
    users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = HeldReads(users, monkeypatch)
    users.replace(line("billing", b"secret"))
    slow = asyncio.create_task(users.provider.refresh())
    try:
        await eventually_async(lambda: reads.done)
        users.replace(line("billing", b"another"))
        later = asyncio.create_task(users.provider.refresh())
        await asyncio.sleep(0)
    finally:
        reads.go_on()
    await asyncio.gather(slow, later)
    assert await users.refusal(b"billing:secret") == WRONG
    assert await users.identity(b"billing:another") == Identity("billing", "basic")


async def test_users_that_are_gone_and_new_passwords_are_withdrawals(users: Users) -> None:
    content = users.path.read_text()
    for changed, withdrawals in (
        (content + line("third", b"3"), 0),
        (content, 1),
        (line("billing", b"another") + line("reports", b"r"), 2),
        ("", 3),
        ("", 3),
    ):
        users.replace(changed)
        await users.provider.refresh()
        assert users.provider.withdrawals == withdrawals


@pytest.mark.parametrize("content", ["billing:{SHA}qUqP5cyxm6YcTAhz05Hph5gvu9M=\n", None])
async def test_a_file_that_becomes_unusable_leaves_the_users_as_they_are(users: Users, content: str | None) -> None:
    if content is None:
        users.path.unlink()
        users.clock.advance_ms(1000)
    else:
        users.replace(content)
    assert await users.identity(b"billing:secret") == Identity("billing", "basic")
    assert users.provider.failures == 1
    # It is read again when it changes, not for every client.
    users.clock.advance_ms(1000)
    await users.identity(b"billing:secret")
    assert users.provider.failures == 1
    users.replace(line("billing", b"right again"))
    assert await users.identity(b"billing:right again") == Identity("billing", "basic")


async def test_a_file_that_could_not_be_read_is_tried_again(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> dict[str, bytes]:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(users.provider, "_read", fails)
        users.replace(line("reports", b"other"))
        assert (await users.identity(b"billing:secret")).role == "billing"
    users.clock.advance_ms(1000)
    await users.refusal(b"billing:secret")
    assert users.provider.withdrawals == 1


def test_a_file_that_is_unusable_at_the_start_is_refused_by_its_name(tmp_path: Path) -> None:
    config = BrokerConfig(auth="basic", basic_file=str(tmp_path / "none"))
    with pytest.raises(ProviderUnusable, match=r"basic_file: .*none: No such file or directory"):
        BasicProvider.from_config(config, VirtualClock())
    (tmp_path / "none").write_text("billing:secret")
    with pytest.raises(
        ProviderUnusable, match=r"basic_file: .*none: line 1: user 'billing' has a hash of an unknown kind"
    ):
        BasicProvider.from_config(config, VirtualClock())
    (tmp_path / "none").write_bytes(b"#" * (4 * 1024 * 1024 + 1))
    with pytest.raises(ProviderUnusable, match="it has more than 4194304 bytes"):
        BasicProvider.from_config(config, VirtualClock())


@given(st.binary(max_size=100))
def test_any_bytes_are_refused(data: bytes) -> None:
    async def ask() -> None:
        with pytest.raises(Unauthenticated):
            await _PROVIDER.authenticate(Credentials(data))

    asyncio.run(ask())


@pytest.fixture(scope="module", autouse=True)
def provider_for_garbage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    global _PROVIDER
    path = tmp_path_factory.mktemp("basic") / "users"
    path.write_text(line("billing", b"secret"))
    _PROVIDER = BasicProvider(path, VirtualClock())
    yield
    asyncio.run(_PROVIDER.close())


_PROVIDER: BasicProvider
