"""The result of a backup's last verification: an object beside it, so that every Kubernetes that restores it sees it.

It names the upload that was verified: one of the same name that was made since has no result yet. A verification that
could not be done, such as for want of space, has none.
"""

from __future__ import annotations

from typing import Final

import msgspec

from heliograph_broker.storage.base.json_errors import NOT_JSON

from .object_store import ObjectStore

VERIFIED: Final = "verified.json"
FAILED: Final = "verification-failed.json"
RESULTS: Final = frozenset({VERIFIED, FAILED})


class Verified(msgspec.Struct, rename="camel"):
    """That a backup was fetched, restored, and found to be complete."""

    verified_ms: int
    topics: int
    subscriptions: int
    entries: int
    upload: str = ""


class FailedVerification(msgspec.Struct, rename="camel"):
    """That a backup was fetched, and cannot be restored or lacks something that the broker had."""

    failed_ms: int
    problem: str
    upload: str = ""


def record_verified(store: ObjectStore, name: str, result: Verified) -> None:
    """Record that a verification succeeded. Raises :class:`.object_store.StoreError`."""
    store.put(f"{name}/{VERIFIED}", msgspec.json.encode(result))
    store.delete(f"{name}/{FAILED}")


def record_failed(store: ObjectStore, name: str, result: FailedVerification) -> None:
    """Record that a verification failed. Raises :class:`.object_store.StoreError`.

    Interrupted, here and above, it leaves the marks of both: the backup counts as one whose verification failed.
    """
    store.put(f"{name}/{FAILED}", msgspec.json.encode(result))
    store.delete(f"{name}/{VERIFIED}")


def failure_of(store: ObjectStore, name: str, upload: str) -> FailedVerification | None:
    """Return how the last verification of a backup failed; None if it did not, or there was none of this upload.

    Raises :class:`.object_store.StoreError`.
    """
    try:
        failure = msgspec.json.decode(store.get(f"{name}/{FAILED}"), type=FailedVerification)
    except KeyError:
        return None
    except NOT_JSON as error:
        return FailedVerification(0, f"{store.url}/{name}/{FAILED} cannot be read: {error}", upload)
    return failure if failure.upload == upload else None


def result_text(store: ObjectStore, name: str, upload: str) -> str:
    """Return the result of the last verification of a backup in a few words; empty if there was none of this upload.

    Raises :class:`.object_store.StoreError`.
    """
    if (failure := failure_of(store, name, upload)) is not None:
        return f"verification failed: {failure.problem}"
    try:
        verified = msgspec.json.decode(store.get(f"{name}/{VERIFIED}"), type=Verified)
    except (KeyError, *NOT_JSON):
        return ""
    return "verified" if verified.upload == upload else ""
