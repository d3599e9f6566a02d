"""A topic of a Heliograph, which deletes single entries, or whole ledgers if nothing asks for more."""

from __future__ import annotations

from tests.support.broker_process import BrokerProcess
from tests.support.clients import rest
from tests.support.polling import eventually

from .model import Partition, Place
from .topic import LEDGER, Topic

_FOREVER = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
_NOTHING = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}


class HeliographTopic(Topic):
    """Its broker has ledgers of :data:`~.topic.LEDGER` entries. Except in :meth:`trim` a retention keeps all."""

    broker: BrokerProcess

    def __init__(self, broker: BrokerProcess, partitions: int, *, compacted: bool) -> None:
        super().__init__(broker, partitions, compacted=compacted)
        rest(broker, "POST", f"namespaces/public/{self._namespace}/retention", _FOREVER)

    def _first_stored(self, partition: Partition) -> Place:
        """Return where the stored entries begin; past all of them if there are none."""
        for ledger in self._stats(partition)["ledgers"]:
            if ledger["entries"]:
                return ledger["ledgerId"], ledger.get("firstEntry", 0)
        return 1 << 62, 0

    def _kept_from(self, partition: Partition, *, by_entry: bool) -> Place:
        """Return the first entry that has to be kept: that of the slowest subscription, or the first of its ledger."""
        # The cursor of a reader has the state "NoLedger", and keeps no entries.
        cursors = [each for each in self._stats(partition)["cursors"].values() if each["state"] != "NoLedger"]
        marks = [each["markDeletePosition"].split(":") for each in cursors]
        last_done = min(((int(mark[0]), int(mark[1])) for mark in marks), default=(1 << 62, 0))
        kept = [place for place in partition.stored() if place > last_done]
        if by_entry:
            return kept[0] if kept else (1 << 62, 0)
        if kept:
            return min(place for place in partition.stored() if place[0] == kept[0][0])
        stored = partition.stored()
        last = [place for place in stored if place[0] == stored[-1][0]]
        # The ledger that is written to goes when it is full.
        return (1 << 62, 0) if last[-1][1] + 1 >= LEDGER else last[0]

    def trim(self, *, by_entry: bool) -> None:
        path = f"namespaces/public/{self._namespace}/retention"
        if by_entry:
            rest(self.broker, "POST", path, _NOTHING)
        else:
            rest(self.broker, "DELETE", path)
        for partition in self.partitions.values():
            if partition.stored():
                until = self._kept_from(partition, by_entry=by_entry)
                eventually(
                    lambda p=partition, at=until: self._first_stored(p) >= at,  # type: ignore[misc]
                    what=f"{partition.name} being trimmed up to {until}",
                )
        rest(self.broker, "POST", path, _FOREVER)
        for partition in self.partitions.values():
            self._note_trimmed(partition)

    def _note_trimmed(self, partition: Partition) -> None:
        first = self._first_stored(partition)
        partition.gone.update(place for place in partition.entries if place < first)

    def outlive(self) -> None:
        path = f"namespaces/public/{self._namespace}/messageTTL"
        rest(self.broker, "POST", path, 1)
        for partition in self.partitions.values():
            partition.moved = max([partition.moved, *partition.entries[-1:]])
            stats = f"{self._path(partition.name)}/stats"

            def expired(stats: str = stats) -> bool:
                found = rest(self.broker, "GET", stats)["subscriptions"]
                # A TTL leaves alone what compaction has not read.
                durable = [each for name, each in found.items() if each["isDurable"] and name != "__compaction"]
                return all(each["msgBacklog"] == 0 for each in durable)

            eventually(expired, what=f"{partition.name} being expired", every_s=0.1)
        rest(self.broker, "DELETE", path)

    def truncate(self, partition: Partition) -> None:
        rest(self.broker, "DELETE", f"{self._path(partition.name)}/truncate")
        partition.compacted.clear()
        self._note_trimmed(partition)

    def restart(self, *, killed: bool) -> None:
        if killed:
            self.broker.kill9()
        self.broker.restart()
