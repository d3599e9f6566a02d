"""A topic of an Apache Pulsar, which deletes whole ledgers only, and not the one that is written to.

Pulsar deletes a ledger whenever a subscription moves or a ledger is full, in the background. The model must know when,
so that a subscription of the topic's own keeps everything and is moved by :meth:`PulsarTopic.trim` alone.
"""

from __future__ import annotations

from tests.support.clients import rest
from tests.support.polling import eventually

from .model import Partition, Place
from .topic import EARLIEST, LEDGER, Topic

#: Settings of a Pulsar with ledgers of :data:`~.topic.LEDGER` entries.
SETTINGS = (
    f"managedLedgerMaxEntriesPerLedger={LEDGER}",
    "managedLedgerMinLedgerRolloverTimeMinutes=0",
    # Otherwise a subscription that is moved keeps its ledgers for up to a minute.
    "managedLedgerDefaultMarkDeleteRateLimit=0",
)
_ANCHOR = "anchor"


class PulsarTopic(Topic):
    """Its broker was started with :data:`SETTINGS`."""

    def _keep(self) -> None:
        super()._keep()
        for name in self.partitions:
            self._subscribe(name, _ANCHOR)

    def _move(self, partition: Partition, subscription: str, up_to: Place | None) -> None:
        if up_to is not None and self._done(partition, subscription) >= up_to:
            return
        super()._move(partition, subscription, up_to)
        last = up_to or max(partition.entries, default=(0, -1))
        eventually(
            lambda: self._done(partition, subscription) >= last,
            what=f"{subscription} of {partition.name} being moved behind {last}",
        )

    def _done(self, partition: Partition, subscription: str) -> Place:
        """Return the last entry that is acknowledged with all before it."""
        ledger, entry = self._stats(partition)["cursors"][subscription]["markDeletePosition"].split(":")
        return int(ledger), int(entry)

    def _ledgers(self, partition: Partition) -> list[int]:
        return [each["ledgerId"] for each in self._stats(partition)["ledgers"]]

    def _closed(self, partition: Partition) -> list[int]:
        """Return the ledgers that are not written to; another one follows a full one soon."""
        stored = [ledger for ledger, _ in partition.stored()]
        eventually(
            lambda: stored.count(self._ledgers(partition)[-1]) < LEDGER,
            what=f"a ledger of {partition.name} that can be written to",
        )
        return self._ledgers(partition)[:-1]

    def trim(self, *, by_entry: bool) -> None:
        """Have all ledgers deleted that no other subscription keeps, whatever ``by_entry`` is."""
        for partition in self.partitions.values():
            kept = self._subscriptions(partition) - {_ANCHOR}
            done = min(self._done(partition, each) for each in kept)
            closed = self._closed(partition)
            going = [place for place in partition.stored() if place <= done and place[0] in closed]
            # Those of which every entry is acknowledged.
            whole = [
                place for place in going if all(each <= done for each in partition.stored() if each[0] == place[0])
            ]
            if whole:
                self._move(partition, _ANCHOR, whole[-1])
                eventually(
                    lambda p=partition, last=whole[-1][0]: self._deleted(p, last),  # type: ignore[misc]
                    what=f"ledger {whole[-1][0]} of {partition.name} being deleted",
                )
            self._note_trimmed(partition)

    def _deleted(self, partition: Partition, ledger: int) -> bool:
        """Ask for the deletion, which may have begun before the subscription was moved; return whether it is done."""
        rest(self.broker, "POST", f"{self._path(partition.name)}/trim")
        return self._ledgers(partition)[0] > ledger

    def _note_trimmed(self, partition: Partition) -> None:
        first = self._ledgers(partition)[0]
        partition.gone.update(place for place in partition.entries if place[0] < first)

    def outlive(self) -> None:
        """Move all subscriptions to the end, as a TTL does, which Pulsar applies every few minutes only."""
        for partition in self.partitions.values():
            queries = [each for each in self._subscriptions(partition) if each.startswith("query-")]
            self.expire(partition, None, queries)

    def truncate(self, partition: Partition) -> None:
        if self.compacted:
            # Compaction would begin after all that is stored, and wait for a message until it gives up.
            self.outlive()
            self.trim(by_entry=False)
            return
        closed = self._closed(partition)
        rest(self.broker, "DELETE", f"{self._path(partition.name)}/truncate")
        partition.moved = max([partition.moved, *partition.entries[-1:]])
        eventually(
            lambda: not {*closed} & {*self._ledgers(partition)}, what=f"{closed} of {partition.name} being deleted"
        )
        # Everything was acknowledged, by this subscription as well.
        rest(self.broker, "POST", f"{self._path(partition.name)}/subscription/{_ANCHOR}/resetcursor", EARLIEST)
        self._note_trimmed(partition)

    def _compact(self, partition: Partition) -> None:
        # Without a new entry Pulsar may wait for one until it gives up.
        if any(place > partition.horizon for place in partition.entries):
            super()._compact(partition)

    def restart(self, *, killed: bool) -> None:
        """Unload the topic: what is written later goes to a new ledger, and the broker begins to count again."""
        for partition in self.partitions.values():
            rest(self.broker, "PUT", f"{self._path(partition.name)}/unload")
            # This loads it.
            self._subscribe(partition.name, _ANCHOR)
            partition.counted_from = max(partition.entries, default=(0, -1))
