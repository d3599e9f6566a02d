"""The numbers of a task's messages, by which a broker that deduplicates drops those it has.

The producer's name is a query's own and a task's own, so no other query's messages count as sent. A micro-batch that is
repeated after a crash has the same names and numbers, and what the broker last had under a name tells how many of
its rows are stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import PulsarSourceError

#: A micro-batch has fewer rows than this in one of Spark's partitions.
ROWS_PER_BATCH = 1 << 32
#: What a broker says of a name under which nothing was sent.
UNUSED = -1
_OPTION = "pulsar.producer.producerName"


@dataclass(frozen=True, slots=True)
class Numbering:
    """``name`` is that of a task's producer, ``before`` the number before its first row.

    ``earlier`` is the name that earlier releases gave the task's producer, where it was another one.
    """

    name: str
    before: int
    earlier: str | None = None

    @classmethod
    def of_batch(cls, producer_name: str, query: str, task: int, batch: int) -> Numbering:
        """Return the numbering of one task of a streaming query's micro-batch."""
        return cls(f"{producer_name}-{query}-{task}", batch * ROWS_PER_BATCH, f"{producer_name}-{task}")

    def stored(self, topic: str, last: int) -> int:
        """Return how many rows of the micro-batch the broker has had, if ``last`` is the last number under the name.

        Raises :class:`PulsarSourceError` if that number is of a later micro-batch: the broker would drop every row.
        """
        if last > self.before + ROWS_PER_BATCH:
            raise PulsarSourceError(
                f"writing to {topic}: under the producer name {self.name} the broker has had micro-batch"
                f" {(last - 1) // ROWS_PER_BATCH}, and this is {self.before // ROWS_PER_BATCH}, so it would drop every"
                f" row: the checkpoint was set back or copied; another {_OPTION} sends the rows"
            )
        return max(0, last - self.before)

    def check_earlier(self, topic: str, last: int) -> None:
        """Refuse a micro-batch that an earlier release has begun to send, if ``last`` is the last number it gave.

        Raises :class:`PulsarSourceError`.
        """
        if self.before < last <= self.before + ROWS_PER_BATCH:
            raise PulsarSourceError(
                f"writing to {topic}: micro-batch {self.before // ROWS_PER_BATCH} was sent under the producer name"
                f" {self.earlier} by an earlier release, whose rows this one would send again. If it was this query,"
                f" let that release finish the micro-batch; otherwise choose another {_OPTION}"
            )

    def check_repeat(self, topic: str, stored: int, rows: int) -> None:
        """Raise :class:`PulsarSourceError` if a repeated micro-batch has fewer ``rows`` than are stored of it."""
        if rows < stored:
            raise PulsarSourceError(
                f"writing to {topic}: the broker has {stored} rows of this micro-batch under the producer name"
                f" {self.name}, and its repetition has {rows}: it was divided otherwise, so rows are lost or doubled;"
                " repeat it with the options and the release that it was first sent with"
            )
