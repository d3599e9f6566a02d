"""The token of a User: whether the one in its Secret stays, and the entries of the Secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from heliograph_api.resources.user_spec import TokenProof

from heliograph_operator.objects.conditions import (
    CREDENTIALS_ISSUED,
    EXPIRING,
    Reason,
    Verdict,
    timestamp,
)

from .server_certificate import AUTHORITIES
from .signed_tokens import Issued, Signer

#: The type of a Secret in the layout of service bindings, by which programs find it.
SECRET_TYPE: Final = "servicebinding.io/pulsar"
#: The entry with the token.
TOKEN: Final = "token"
_SECOND: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Way:
    """The way to the brokers: their URL for clients, and the authorities to trust in PEM (empty: none of their own)."""

    url: str
    authorities: str = ""


@dataclass(frozen=True, slots=True)
class TokenPlan:
    """The Secret as it is to be, and what its token says; ``entries`` is None while no token can be signed."""

    entries: Mapping[str, str] | None
    issued: Issued | None
    #: Whether the token is another one than before.
    is_new: bool = False
    #: When it is replaced.
    due: datetime | None = None

    def __repr__(self) -> str:
        return f"TokenPlan({self.issued}, is_new={self.is_new}, due={self.due})"


def plan_token(
    proof: TokenProof, role: str, found: Mapping[str, str], way: Way, signer: Signer | None, now: datetime
) -> TokenPlan:
    """Return the plan for the Secret with the entries ``found``.

    A token is replaced ``rotateBefore`` its end, and if brokers would refuse it, or the spec asks for another one. It
    is not taken back: it stays valid until its end, wherever it was copied to.
    """
    if signer is None:
        return TokenPlan(None, None)
    validity = min(timedelta(milliseconds=proof.validity), signer.longest)
    before = signer.read(found.get(TOKEN, ""))
    due = before.expires - timedelta(milliseconds=proof.rotate_before) if before is not None else now
    if before is not None and before.role == role and now < due and _is_valid_for(before, validity):
        return TokenPlan(_entries(way, found[TOKEN]), before, due=due)
    token = signer.sign(role, validity, now)
    issued = signer.read(token)
    assert issued is not None
    due = issued.expires - timedelta(milliseconds=proof.rotate_before)
    return TokenPlan(_entries(way, token), issued, is_new=True, due=due)


def _is_valid_for(issued: Issued, validity: timedelta) -> bool:
    return abs(issued.expires - issued.issued - validity) < _SECOND


def _entries(way: Way, token: str) -> dict[str, str]:
    parts = urlsplit(way.url)
    return {
        "type": "pulsar",
        "provider": "heliograph",
        "host": parts.hostname or "",
        "port": str(parts.port or ""),
        "uri": way.url,
        TOKEN: token,
        **({AUTHORITIES: way.authorities} if way.authorities else {}),
    }


def token_verdicts(proof: TokenProof | None, name: str, plan: TokenPlan | None, problem: str = "") -> list[Verdict]:
    """Return the conditions CredentialsIssued and Expiring. ``problem`` is why the Secret is not as planned."""
    if proof is None:
        message = "spec.authentication asks for no token"
        return [
            Verdict(CREDENTIALS_ISSUED, "False", Reason.NO_CREDENTIALS, message),
            Verdict(EXPIRING, "False", Reason.NO_CREDENTIALS, message),
        ]
    issued = plan.issued if plan is not None else None
    if problem or plan is None or issued is None:
        message = problem or "the BrokerCluster has no key that signs yet"
        return [
            Verdict(CREDENTIALS_ISSUED, "False", Reason.CREDENTIALS_PENDING, message),
            Verdict(EXPIRING, "Unknown", Reason.CREDENTIALS_PENDING, message),
        ]
    ends = f"Secret {name} has a token that expires at {timestamp(issued.expires)}"
    renewed = f"{ends}; it is replaced at {timestamp(plan.due)}" if plan.due is not None else ends
    return [
        Verdict(CREDENTIALS_ISSUED, "True", Reason.CREDENTIALS_ISSUED, ends),
        Verdict(EXPIRING, "False", Reason.CREDENTIALS_VALID, renewed),
    ]


def expiring(status: Mapping[str, Any], rotate_before: timedelta, now: datetime, problem: str) -> Verdict | None:
    """Return the Expiring condition of a token that could not be replaced, by the status; None: it has time."""
    text = status.get("tokenExpires")
    if text is None:
        return None
    expires = datetime.fromisoformat(str(text))
    if expires <= now:
        return Verdict(EXPIRING, "True", Reason.CREDENTIALS_EXPIRED, f"the token expired at {text}: {problem}")
    if expires - rotate_before <= now:
        message = f"the token expires at {text} and cannot be replaced: {problem}"
        return Verdict(EXPIRING, "True", Reason.CREDENTIALS_EXPIRING, message)
    return None
