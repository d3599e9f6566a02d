"""The keys that sign the tokens of a BrokerCluster: which there are, which of them signs, and which brokers trust.

They are in two Secrets: one with the private halves, which only the operator reads, and one with the public halves,
which is mounted into the brokers. Each is written as a whole, the private one first, so after a crash between the two
writes the same plan follows from what is there. A key signs only after its public half has been with the brokers, and
its public half stays with them until the last token that it signed has expired.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from heliograph_api.tokens.key_sources import KeyUnusable
from heliograph_api.tokens.keys import TokenKey, private_key, public_key
from heliograph_api.tokens.signing import new_pair

from heliograph_operator.objects.conditions import read_timestamp, timestamp

#: Time in which the kubelets bring a changed Secret into the pods: their period of a minute, twice.
SETTLE: Final = timedelta(minutes=2)
#: Difference of clocks that is allowed for.
SKEW: Final = timedelta(minutes=5)
#: Keys that are trusted at the same time; no further one is made meanwhile.
MAX_KEYS: Final = 4
_ALGORITHM: Final = "ES256"
#: The longest validity that a spec can state. Somebody may have written another one into a Secret.
_LONGEST: Final = timedelta(days=366)
#: The last time that is read from a Secret: later ones have no room for a validity after them.
_LAST: Final = datetime(9000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A pair of keys. The private half is not part of its text."""

    #: Identifies it in the header of a token (``kid``).
    id: str
    #: The public half, in PEM.
    public: str
    #: The longest validity of the tokens that it may sign.
    longest: timedelta
    #: When it began to sign; None: not yet.
    since: datetime | None = None
    #: When another one took over; None: none did.
    retired: datetime | None = None
    private: str = ""
    """The private half, in PEM; empty if it was lost."""

    def __repr__(self) -> str:
        return f"SigningKey({self.id}, since={self.since}, retired={self.retired})"

    @property
    def ends(self) -> datetime | None:
        """When the last token that it signed has expired by every clock; None while it may sign others."""
        return self.retired + self.longest + SKEW if self.retired is not None else None

    def ended(self, now: datetime) -> bool:
        """Whether no token that it signed is valid any more."""
        return self.ends is not None and self.ends <= now


@dataclass(frozen=True, slots=True)
class PublishedKey:
    """A public half that the brokers have, and what has to be known of it if its private half is lost."""

    id: str
    public: str
    longest: timedelta
    #: When all brokers have it, whatever their nodes do.
    settled: datetime
    retired: datetime | None = None


@dataclass(frozen=True, slots=True)
class Period:
    """The times that the spec states for keys."""

    #: Time for which a key signs; None: indefinitely.
    every: timedelta | None
    #: Longest validity of a token.
    longest: timedelta


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """The keys as they are to be stored, in this order, before anything is signed."""

    keys: tuple[SigningKey, ...]
    published: tuple[PublishedKey, ...]
    #: The key that signs; None: none does before ``due``.
    signer: SigningKey | None
    #: A key that signs as soon as the brokers accept it, which can be asked from now on.
    to_ask: SigningKey | None
    #: When the plan changes by itself; None: never.
    due: datetime | None


def new_key(longest: timedelta) -> SigningKey:
    """Return a new pair."""
    pair = new_pair(_ALGORITHM)
    return _with_private(private_key(pair.private), longest)


def plan_keys(
    keys: Iterable[SigningKey],
    published: Iterable[PublishedKey],
    period: Period,
    now: datetime,
    *,
    accepted: Collection[str] = (),
    make: Callable[[timedelta], SigningKey] = new_key,
) -> KeyPlan:
    """Return what is to become of the stored ``keys`` and of those that are ``published``.

    ``accepted`` are the ids of keys that a broker was seen to trust. Raises nothing: whatever is missing is made.
    Times that come later than they can are of a clock that was ahead, and count from now.
    """
    before = {each.id: replace(each, settled=min(each.settled, now + SETTLE)) for each in published}
    stored = [replace(each, since=min(each.since, now)) if each.since else each for each in keys]
    kept = [each for each in stored if not each.ended(now)]
    # One that has ended is not lost: the write of its end to the other Secret may not have happened.
    kept += _lost({each.id for each in stored}, before.values(), now)
    first = not kept
    usable = [each for each in kept if each.private]
    signing = sorted((each for each in usable if each.since and not each.retired), key=_since)
    waiting = [each for each in usable if each.since is None]
    current = signing[-1] if signing else None
    changed = {each.id: replace(each, retired=now) for each in signing[:-1]}
    if not waiting and (current is None or (_is_due(current, period, now) and len(kept) < MAX_KEYS)):
        waiting = [make(period.longest)]
        kept += waiting
    to_ask = waiting[0] if waiting and _has_settled(before.get(waiting[0].id), now) else None
    following = waiting[0] if waiting and first else to_ask
    if following is not None and (first or following.id in accepted):
        if current is not None:
            changed[current.id] = replace(current, retired=now)
        current = changed[following.id] = replace(following, since=now)
        to_ask = None
    after = tuple(_with_longest(changed.get(each.id, each), period) for each in kept)
    stated = tuple(_published(each, before.get(each.id), now, first=first) for each in after)
    signer = next((each for each in after if current is not None and each.id == current.id), None)
    if signer is not None and not first and not _has_settled(before.get(signer.id), now):
        # The brokers may not have it: the Secret with the public halves was lost, or the other one is an old copy.
        signer = None
    return KeyPlan(after, stated, signer, to_ask, _due(after, stated, period, now))


def _lost(known: Collection[str], published: Iterable[PublishedKey], now: datetime) -> list[SigningKey]:
    """Return the keys that brokers trust and whose private halves are lost: their tokens stay valid."""
    found = [
        SigningKey(each.id, each.public, each.longest, since=now, retired=each.retired or now)
        for each in published
        if each.id not in known
    ]
    return [each for each in found if not each.ended(now)]


def _since(key: SigningKey) -> tuple[datetime, str]:
    assert key.since is not None
    return key.since, key.id


def _is_due(current: SigningKey, period: Period, now: datetime) -> bool:
    return period.every is not None and current.since is not None and current.since + period.every <= now


def _has_settled(key: PublishedKey | None, now: datetime) -> bool:
    return key is not None and key.settled <= now


def _with_longest(key: SigningKey, period: Period) -> SigningKey:
    """Return a key that may sign tokens of the longest validity; one that is retired keeps what it had."""
    return key if key.retired is not None else replace(key, longest=max(key.longest, period.longest))


def _published(key: SigningKey, before: PublishedKey | None, now: datetime, *, first: bool) -> PublishedKey:
    settled = before.settled if before is not None else now if first else now + SETTLE
    return PublishedKey(key.id, key.public, key.longest, settled, key.retired)


def _due(
    keys: Iterable[SigningKey], published: Iterable[PublishedKey], period: Period, now: datetime
) -> datetime | None:
    times = [each.ends for each in keys]
    times += [each.settled for each in published]
    times += [each.since + period.every for each in keys if each.since and not each.retired and period.every]
    return min((each for each in times if each is not None and each > now), default=None)


# -- the content of the Secrets ------------------------------------------------------------------------------------

KEYS: Final = "keys.json"
"""The entry of either Secret with its keys."""
PUBLIC: Final = "public.pem"
"""The entry with all public halves, which the brokers read."""


def private_data(keys: Iterable[SigningKey]) -> dict[str, str]:
    """Return the entries of the Secret with the private halves."""
    return {KEYS: _json([_fields(each) for each in keys])}


def public_data(published: Iterable[PublishedKey]) -> dict[str, str]:
    """Return the entries of the Secret with the public halves."""
    stated = list(published)
    fields = [
        {
            "id": each.id,
            "public": each.public,
            "longestSeconds": int(each.longest.total_seconds()),
            "settled": timestamp(each.settled),
            **({"retired": timestamp(each.retired)} if each.retired else {}),
        }
        for each in stated
    ]
    return {KEYS: _json(fields), PUBLIC: "".join(each.public for each in stated)}


def read_private(data: Mapping[str, str]) -> list[SigningKey]:
    """Return the keys in a Secret's entries; those that cannot be read are left out, as if they were lost."""
    found = []
    for each in _list(data):
        try:
            longest = _longest(each)
            since, retired = _time(each.get("since")), _time(each.get("retired"))
            if private := str(each.get("private") or ""):
                key = replace(_with_private(private_key(private.encode()), longest), since=since, retired=retired)
            else:
                key = _with_public(str(each["public"]), longest, since, retired)
        except (KeyUnusable, ValueError, TypeError, KeyError, OverflowError):
            continue
        if key.private or key.retired:
            found.append(key)
    return found


def read_public(data: Mapping[str, str]) -> list[PublishedKey]:
    """Return the public halves in a Secret's entries; those that cannot be read are left out."""
    found = []
    for each in _list(data):
        try:
            key = _with_public(str(each["public"]), _longest(each))
            settled, retired = _time(each["settled"]), _time(each.get("retired"))
        except (KeyUnusable, ValueError, TypeError, KeyError, OverflowError):
            continue
        if settled is not None:
            found.append(PublishedKey(key.id, key.public, key.longest, settled, retired))
    return found


def _fields(key: SigningKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "longestSeconds": int(key.longest.total_seconds()),
        **({"private": key.private} if key.private else {"public": key.public}),
        **({"since": timestamp(key.since)} if key.since else {}),
        **({"retired": timestamp(key.retired)} if key.retired else {}),
    }


def _with_private(key: TokenKey, longest: timedelta) -> SigningKey:
    private = key.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    public = key.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    return SigningKey(_id(public), public, longest, private=private)


def _with_public(
    public: str, longest: timedelta, since: datetime | None = None, retired: datetime | None = None
) -> SigningKey:
    key = public_key(public.encode()).key
    text = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    return SigningKey(_id(text), text, longest, since, retired)


def _id(public: str) -> str:
    return hashlib.sha256(public.encode()).hexdigest()[:16]


def _json(items: list[dict[str, Any]]) -> str:
    return json.dumps(items, indent=1, sort_keys=True) + "\n"


def _list(data: Mapping[str, str]) -> list[Mapping[str, Any]]:
    try:
        found = json.loads(data.get(KEYS, "[]"))
    except ValueError:
        return []
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _longest(fields: Mapping[str, Any]) -> timedelta:
    return min(timedelta(seconds=int(fields["longestSeconds"])), _LONGEST)


def _time(text: object) -> datetime | None:
    return min(read_timestamp(text), _LAST) if text is not None else None
