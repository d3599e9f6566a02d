"""Tells the brokers that a connection was established with from others that answer instead.

Resources own objects in certain brokers. In others, objects of the same names belong to somebody else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from heliograph_operator.objects.kinds import GROUP

#: The annotation with which a person says that the brokers are the same: their URL or, at the same URL, what they are.
SAME_BROKERS: Final = "same-brokers"


class Brokers(NamedTuple):
    """Brokers at an address; ``store_id`` is empty if they do not tell it, as Apache Pulsar's."""

    admin_url: str
    product: str
    store_id: str = ""

    def __str__(self) -> str:
        store = f" with store {self.store_id}" if self.store_id else ""
        return f"{self.product}{store} at {self.admin_url}"

    def status(self) -> dict[str, Any]:
        """Return the status fields that record them."""
        return {"endpoints": {"http": self.admin_url}, "product": self.product, "storeId": self.store_id or None}


def recorded_brokers(status: Mapping[str, Any]) -> Brokers | None:
    """Return the brokers that the status of a connection records; None if it was never established."""
    url = (status.get("endpoints") or {}).get("http")
    if not url:
        return None
    return Brokers(str(url), str(status.get("product") or ""), str(status.get("storeId") or ""))


def other_brokers(recorded: Brokers | None, found: Brokers, confirmed: str) -> str:
    """Return why ``found`` do not count as those that are recorded, and what is valid; empty if they do.

    The id of a store proves it either way. Else the same product at the same URL counts as the same. ``confirmed`` is
    the annotation :data:`SAME_BROKERS`.
    """
    if recorded is not None and _same(recorded, found):
        return ""
    moved = recorded is None or recorded.admin_url != found.admin_url
    # A text that names a URL says nothing of what answers there later.
    named = found.admin_url if moved else found.store_id or found.product
    if confirmed == named:
        return ""
    confirm = f"annotation {GROUP}/{SAME_BROKERS}: {named} on the BrokerConnection"
    if recorded is None:
        return (
            "resources have objects in brokers that the status does not name, as it was lost or the BrokerConnection"
            f" was created again; spec.adminUrl leads to {found}, and nothing is done there; valid: {confirm}, if"
            " these brokers have the objects; for other brokers, a BrokerConnection of another name"
        )
    back = f"spec.adminUrl {recorded.admin_url}" if moved else f"{recorded} again"
    return (
        f"the objects of the resources are in {recorded}, but spec.adminUrl leads to {found}, and nothing is done"
        f" there; valid: {back}; or {confirm}, if these are the same brokers; for other brokers, a BrokerConnection of"
        " another name"
    )


def _same(recorded: Brokers, found: Brokers) -> bool:
    # Statuses of earlier operators may lack it.
    if recorded.product and recorded.product != found.product:
        return False
    if recorded.store_id and found.store_id:
        return recorded.store_id == found.store_id
    return recorded.admin_url == found.admin_url
