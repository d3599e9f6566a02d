"""The keys of an issuer: fetched once for many, at most every few seconds, and kept while it is away.

The issuer is a server of this machine, ages are on virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from heliograph_broker.clock import VirtualClock
from heliograph_broker.security.authentication.authority_file import AuthorityFile
from heliograph_broker.security.authentication.issuer_keys import (
    KEEP_S,
    MAX_PAUSE_S,
    PAUSE_S,
    REFRESH_S,
    STALE_S,
    IssuerKeys,
)
from heliograph_broker.security.authentication.published_keys import DiscoveredKeys, FetchFailed

from tests.support.certificates import Authority
from tests.support.oidc_issuer import DISCOVERY, OidcIssuer, json_answer
from tests.support.polling import eventually_async


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def issuer() -> Iterator[OidcIssuer]:
    with OidcIssuer() as running:
        yield running


@pytest.fixture
def keys(issuer: OidcIssuer, clock: VirtualClock) -> IssuerKeys:
    return IssuerKeys(DiscoveredKeys(issuer.url), clock)


def pass_s(clock: VirtualClock, seconds: float) -> None:
    clock.advance_ms(round(seconds * 1000))


async def count(keys: IssuerKeys, key_id: str | None) -> int | None:
    """Return how many keys of this id there are; None: the issuer's keys are unknown."""
    found = await keys.find(key_id)
    return None if found is None else len(found)


async def test_keys_are_fetched_once_for_all_who_wait(issuer: OidcIssuer, keys: IssuerKeys) -> None:
    issuer.hold()
    waiting = [asyncio.create_task(count(keys, "key-1")) for _ in range(50)]
    await eventually_async(lambda: issuer.requests[DISCOVERY])
    # One that gives up does not end the fetch for the others.
    waiting.pop().cancel()
    issuer.release()
    assert set(await asyncio.gather(*waiting)) == {1}
    assert await count(keys, "key-1") == 1
    assert issuer.requests == {DISCOVERY: 1, "/keys": 1}
    assert (keys.fetches, keys.failures, keys.last_failure) == (1, 0, "")


async def test_an_unknown_id_fetches_at_most_every_few_seconds(
    issuer: OidcIssuer, keys: IssuerKeys, clock: VirtualClock
) -> None:
    assert await count(keys, "key-1") == 1
    new = issuer.rotate()
    # Too soon after the last fetch.
    assert await count(keys, new) == 0
    pass_s(clock, PAUSE_S)
    flood = await asyncio.gather(*(count(keys, f"random-{number}") for number in range(1000)), count(keys, new))
    assert flood == [0] * 1000 + [1]
    assert keys.fetches == 2
    for _ in range(10):
        await asyncio.gather(*(count(keys, f"random-{number}") for number in range(100)))
        pass_s(clock, PAUSE_S / 10)
    assert keys.fetches == 2
    # A token without an id is by the only key, or by none: no fetch would tell.
    pass_s(clock, PAUSE_S)
    assert await count(keys, None) == 0
    assert keys.fetches == 2


async def test_old_keys_are_refreshed_in_the_background(
    issuer: OidcIssuer, keys: IssuerKeys, clock: VirtualClock
) -> None:
    assert await count(keys, "key-1") == 1
    issuer.rotate(keep=False)
    pass_s(clock, REFRESH_S)
    issuer.hold()
    # Nobody waits for an issuer that is slow, and the keys change once it has answered.
    assert await count(keys, "key-1") == 1
    await eventually_async(lambda: issuer.requests[DISCOVERY] == 2)
    assert await count(keys, "key-1") == 1
    issuer.release()
    await eventually_async(lambda: keys.age_s == 0)
    assert await count(keys, "key-1") == 0
    assert await count(keys, "key-2") == 1


async def test_keys_that_the_issuer_takes_away_are_counted(
    issuer: OidcIssuer, keys: IssuerKeys, clock: VirtualClock
) -> None:
    for rotate, removals in ((lambda: None, 0), (issuer.rotate, 0), (lambda: issuer.rotate(keep=False), 1)):
        rotate()
        pass_s(clock, REFRESH_S)
        keys.refresh_if_old()
        await eventually_async(lambda: keys.age_s == 0)
        # It is young again.
        keys.refresh_if_old()
        assert keys.removals == removals
    assert keys.fetches == 3


async def test_keys_that_nobody_has_asked_for_are_fetched_first(
    issuer: OidcIssuer, keys: IssuerKeys, clock: VirtualClock
) -> None:
    assert await count(keys, "key-1") == 1
    issuer.rotate(keep=False)
    pass_s(clock, STALE_S)
    assert await count(keys, "key-1") == 0


async def test_an_issuer_that_fails_leaves_its_keys_in_use_for_a_day(
    issuer: OidcIssuer, keys: IssuerKeys, clock: VirtualClock
) -> None:
    assert await count(keys, "key-1") == 1
    issuer.fail(status=503)
    pass_s(clock, KEEP_S - 1)
    assert await count(keys, "key-1") == 1
    assert keys.failures == 1
    assert keys.last_failure == f"{issuer.url}{DISCOVERY} answers with status 503; valid: 200"
    pass_s(clock, 1)
    assert await count(keys, "key-1") is None
    issuer.recover()
    pass_s(clock, MAX_PAUSE_S)
    assert await count(keys, "key-1") == 1
    assert keys.last_failure == ""


async def test_pauses_grow_while_an_issuer_fails(issuer: OidcIssuer, keys: IssuerKeys, clock: VirtualClock) -> None:
    issuer.fail()
    pauses = []
    for _ in range(6):
        assert await count(keys, "key-1") is None
        fetches, pause = keys.fetches, 0
        while keys.fetches == fetches:
            pass_s(clock, 1)
            pause += 1
            await count(keys, "key-1")
        pauses.append(pause)
    assert pauses == [5, 10, 20, 40, 60, 60]
    assert keys.failures == keys.fetches == 7


def changed(**members: Any) -> Callable[[OidcIssuer], None]:
    return lambda issuer: issuer.changes.update(members)


def answering(path: str, content: object) -> Callable[[OidcIssuer], None]:
    return lambda issuer: issuer.answers.update({path: json_answer(content)})


def redirecting(issuer: OidcIssuer) -> None:
    headers = {"Location": f"{issuer.url}/keys"}
    issuer.answers[DISCOVERY] = lambda: web.Response(status=302, headers=headers)


def compressing(issuer: OidcIssuer) -> None:
    issuer.answers["/keys"] = lambda: web.Response(body=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda issuer: issuer.fail("/keys", status=404), "/keys answers with status 404; valid: 200"),
        (redirecting, "answers with status 302; valid: 200"),
        (compressing, "/keys answers with compressed content"),
        (changed(issuer="https://another"), "is for the issuer 'https://another'; valid: 'http://127.0.0.1:"),
        (changed(issuer=None), "is for the issuer null; valid:"),
        (changed(jwks_uri=None), "the jwks_uri null of http://127.0.0.1:"),
        (changed(jwks_uri="http://id.example/keys"), "the jwks_uri 'http://id.example/keys' of"),
        (changed(jwks_uri="file:///etc/passwd"), "the jwks_uri 'file:///etc/passwd' of"),
        (answering(DISCOVERY, b"{"), "is no JSON"),
        (answering(DISCOVERY, b"[" * 100_000), "is no JSON"),
        (answering(DISCOVERY, []), "is no JSON object"),
        (answering("/keys", b"{"), "/keys: the key set is no JSON"),
        (answering("/keys", {"keys": []}), "/keys: the key set has no key that can be used"),
        (answering("/keys", b" " * (256 * 1024 + 1)), "/keys answers with more than 262144 bytes"),
    ],
)
async def test_answers_that_are_not_as_they_must_be_are_failures(
    issuer: OidcIssuer, keys: IssuerKeys, break_it: Callable[[OidcIssuer], None], words: str
) -> None:
    break_it(issuer)
    assert await keys.find("key-1") is None
    assert words in keys.last_failure
    assert keys.failures == 1


async def test_an_issuer_that_does_not_answer_in_time_has_failed(issuer: OidcIssuer) -> None:
    issuer.hold()
    with pytest.raises(FetchFailed, match=r"no complete answer within 0\.2 s"):
        await DiscoveredKeys(issuer.url, within_s=0.2).fetch()
    issuer.release()
    await DiscoveredKeys(issuer.url).fetch()


async def test_an_issuer_that_cannot_be_reached_has_failed() -> None:
    with OidcIssuer() as issuer:
        url = issuer.url
    with pytest.raises(FetchFailed, match="ClientConnectorError: Cannot connect to host"):
        await DiscoveredKeys(url).fetch()


async def test_a_fetch_ends_when_the_broker_does(issuer: OidcIssuer, keys: IssuerKeys) -> None:
    issuer.hold()
    keys.refresh()
    await eventually_async(lambda: issuer.requests[DISCOVERY])
    await keys.close()
    assert keys.age_s is None


async def test_an_issuer_is_trusted_by_the_file_of_its_authorities(tmp_path: Path) -> None:
    authority, path = Authority(), tmp_path / "ca.crt"
    authority.write(tmp_path)
    trusted = AuthorityFile(path)
    with OidcIssuer(authority=authority) as issuer:
        assert len(await DiscoveredKeys(issuer.url, trusted).fetch()) == 1
        # The file is read each time, so that it can be replaced.
        Authority().write(tmp_path)
        with pytest.raises(FetchFailed, match="certificate verify failed"):
            await DiscoveredKeys(issuer.url, trusted).fetch()
        with pytest.raises(FetchFailed, match="certificate verify failed"):
            await DiscoveredKeys(issuer.url).fetch()
        # While an authority is replaced, both are in the file.
        path.write_bytes(Authority("successor").pem + authority.pem)
        assert len(await DiscoveredKeys(issuer.url, trusted).fetch()) == 1
        path.write_text("no certificate")
        with pytest.raises(FetchFailed, match=r"^/.*ca\.crt holds no certificates in PEM, or a damaged one$"):
            await DiscoveredKeys(issuer.url, trusted).fetch()
        path.unlink()
        with pytest.raises(FetchFailed, match=r"^cannot read /.*ca\.crt: No such file or directory$"):
            await DiscoveredKeys(issuer.url, trusted).fetch()
        # Keys of an encrypted issuer come by an encrypted connection, too.
        authority.write(tmp_path)
        issuer.changes["jwks_uri"] = f"http://{issuer.url.removeprefix('https://')}/keys"
        with pytest.raises(FetchFailed, match="is not encrypted; valid: https://"):
            await DiscoveredKeys(issuer.url, trusted).fetch()
