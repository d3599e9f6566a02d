"""The options of ``replay``: the messages to send, the target, the order and the pace."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from heliograph_spark.jobs.plan.begun_replay import Given
from heliograph_spark.plan.errors import OptionError
from heliograph_spark.plan.options import full_name, write_options
from heliograph_spark.plan.timestamps import write_moment
from heliograph_spark.run.session import Broker

from .archiving.options import Tables, check_archive
from .replay_rows import Order


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The messages to send, and the target.

    They are read from the archive in files at ``path`` or from one in ``tables``; exactly one of these is given.

    Publish times are from ``from_ms`` up to before ``until_ms``, in milliseconds since 1970, and event times from
    ``event_from_ms`` up to before ``event_until_ms``: with one of these, messages without an event time are not sent.
    Only messages with one of the ``keys`` are sent, unless there are none, and only those with each of the
    ``properties``.

    ``order`` is the time by which the original partitions are merged. With ``speed`` messages go out with the gaps that
    these times have, divided by it. ``rate`` is in messages a second, over all tasks. With ``producer_name`` messages
    that a run before this one has sent from the same ``from_ms`` on, by the same keys, properties and event times, are
    not sent twice, on a topic that deduplicates. With ``checkpoint``, a directory, a run goes on where the one before
    it stopped, on such a topic: only ``rate``, ``speed`` and the broker's options may be others then.
    """

    broker: Broker
    path: str | None
    topic: str
    to: str
    from_ms: int | None = None
    until_ms: int | None = None
    rate: float | None = None
    speed: float | None = None
    producer_name: str | None = None
    checkpoint: str | None = None
    order: Order = "publish"
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    event_from_ms: int | None = None
    event_until_ms: int | None = None
    tables: Tables | None = None

    def check(self) -> None:
        """Raise :class:`OptionError` for values that are not valid, by themselves or together."""
        check_archive(self.path, self.tables, "--path")
        write_options(self.broker.source_options(topic=self.to))
        full_name(self.topic)
        if self.rate is not None and not self.rate > 0:
            raise OptionError(f"--rate: {self.rate} messages a second is no rate above zero")
        if self.speed is not None and not 0 < self.speed < math.inf:
            raise OptionError(f"--speed: {self.speed} is no factor above zero")
        _check_range("--from", self.from_ms, "--until", self.until_ms)
        _check_range("--event-from", self.event_from_ms, "--event-until", self.event_until_ms)
        if self.checkpoint is not None and self.producer_name is not None:
            raise OptionError("--checkpoint and --producer-name exclude each other: a checkpoint has a name of its own")
        if self.checkpoint is not None and self.broker.admin_url is None:
            raise OptionError("--checkpoint needs --admin-url, which tells whether the target deduplicates")

    def given(self, source: str, target: str) -> Given:
        """Return the options that decide on the messages and their order, the same values for the same messages."""
        moments = {
            "--from": self.from_ms,
            "--until": self.until_ms,
            "--event-from": self.event_from_ms,
            "--event-until": self.event_until_ms,
        }
        return {
            **self._given_archive(),
            "--topic": (source,),
            "--to": (target,),
            "--order": (self.order,),
            "--key": tuple(sorted(set(self.keys))),
            "--property": tuple(f"{name}={value}" for name, value in sorted(self.properties.items())),
            **{name: () if moment is None else (write_moment(moment),) for name, moment in moments.items()},
        }

    def _given_archive(self) -> Given:
        if self.tables is None:
            assert self.path is not None
            return {"--path": (self.path.rstrip("/") or "/",)}
        return {
            "--catalog": (self.tables.catalog,),
            "--table-namespace": (self.tables.namespace,),
            "--upsert": ("",) if self.tables.last_values else (),
        }

    @property
    def archive(self) -> str:
        """The archive's name in messages."""
        return str(self.path) if self.tables is None else self.tables.name

    @property
    def has_event_range(self) -> bool:
        """Whether only messages of a range of event times are sent."""
        return self.event_from_ms is not None or self.event_until_ms is not None

    @property
    def selection(self) -> str:
        """The messages asked for but for their publish times, the same text for the same ones; empty for all of them.

        Producer names follow from it, so without event times it is the text that it was before there were any.
        """
        last_values = self.tables is not None and self.tables.last_values
        if not self.keys and not self.properties and not self.has_event_range and not last_values:
            return ""
        found: list[object] = [sorted(set(self.keys)), sorted(self.properties.items())]
        if self.has_event_range:
            found.append([self.event_from_ms, self.event_until_ms])
        if last_values:
            # All messages have some that are before those.
            found.append("last values")
        return json.dumps(found)


def _check_range(first: str, begin_ms: int | None, last: str, end_ms: int | None) -> None:
    if begin_ms is not None and end_ms is not None and begin_ms >= end_ms:
        raise OptionError(
            f"{first} and {last}: the range ends before it begins: {write_moment(begin_ms)} is not before"
            f" {write_moment(end_ms)}"
        )
