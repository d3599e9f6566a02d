"""Settings that administrators make at run time: dynamic ones, resource groups, and documents without effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.base.records import BrokerSettingsRecord

if TYPE_CHECKING:
    from heliograph_broker.messaging.log.record_set import BrokerRecords


class BrokerSettings:
    """See the module. Every change is stored at once."""

    __slots__ = ("_record", "_records")

    def __init__(self, broker_records: BrokerRecords) -> None:
        self._records = broker_records
        self._record = BrokerSettingsRecord()

    def restore(self, record: BrokerSettingsRecord) -> None:
        self._record = record

    @property
    def dynamic(self) -> dict[str, str]:
        """The values that were set at run time, as text, by Pulsar's names. Not to be changed in place."""
        return self._record.dynamic

    @property
    def resource_groups(self) -> dict[str, dict[str, int]]:
        """The resource groups by name. Not to be changed in place."""
        return self._record.resource_groups

    def set_dynamic(self, name: str, value: str | None) -> None:
        """Set a value, or with None revert it."""
        others = {known: kept for known, kept in self.dynamic.items() if known != name}
        self._store(dynamic=others if value is None else others | {name: value})

    def set_resource_group(self, name: str, group: dict[str, int] | None) -> None:
        """Set a group, or with None delete it."""
        others = {known: kept for known, kept in self.resource_groups.items() if known != name}
        self._store(resource_groups=others if group is None else others | {name: group})

    def documents(self, kind: str) -> dict[str, Any]:
        """Return the kept documents of a kind by name. Not to be changed in place."""
        return self._record.documents.get(kind, {})

    def keep_document(self, kind: str, name: str, document: Any) -> None:
        """Keep a document, JSON, or with None forget it."""
        others = {known: kept for known, kept in self.documents(kind).items() if known != name}
        named = others if document is None else others | {name: document}
        self._store(documents=self._record.documents | {kind: named})

    def _store(self, **changed: object) -> None:
        self._record = msgspec.structs.replace(self._record, **changed)
        self._records.put(records.BROKER_SETTINGS, records.encode(self._record))
