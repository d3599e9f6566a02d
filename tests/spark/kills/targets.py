"""Targets that messages are written to: for each kind the command that is killed, and the rows that it leaves.

Another one needs a :class:`Target` and an entry in :data:`TARGETS`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import pulsar
from heliograph_spark.run.archived import topic_directory
from pyarrow import RecordBatch, dataset
from pyiceberg.catalog import load_catalog
from pyiceberg.table import DataScan

from tests.support.clients import DEADLINE_MS, RunningBroker, connect, rest

from .killed import Killed
from .tally import Id, Row

PROGRAM = Path(__file__).with_name("sink_program.py")
_FOREVER = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


@dataclass(frozen=True)
class Source:
    """The topic with the messages; jobs read ``trigger_bytes`` of it in a micro-batch."""

    broker: RunningBroker
    #: Its name without tenant and namespace, which are public/default.
    name: str
    partitions: int
    trigger_bytes: int

    @property
    def path(self) -> str:
        return f"persistent/public/default/{self.name}"

    @property
    def topic(self) -> str:
        return f"persistent://public/default/{self.name}"


class Target(Protocol):
    """Somewhere to write to, made for one run in an empty directory."""

    @property
    def job(self) -> Killed: ...

    def finish(self) -> None:
        """Write what is left of the topic. Raises :class:`~.killed.JobFailed`."""

    def rows(self) -> Iterator[Row]:
        """Read everything that was written."""

    def differences(self) -> list[str]:
        """Return what else is not as it should be at the end, a line each."""


class TargetKind(Protocol):
    """Makes a target for a source, in an empty directory."""

    def __call__(self, source: Source, directory: Path) -> Target: ...


def _id(topic: str, at: pulsar.MessageId) -> Id:
    return topic, at.ledger_id(), at.entry_id(), at.batch_index()


class Archive:
    """Parquet files of ``heliograph-spark archive``."""

    _SUBSCRIPTION: ClassVar = "heliograph-archive"

    def __init__(self, source: Source, directory: Path) -> None:
        self._source = source
        self.path = directory / "archive"
        self.job = self._job(directory, "archive", self.path / "_checkpoint", "--path", str(self.path))

    def _job(self, directory: Path, name: str, state: Path, *target: str) -> Killed:
        source = self._source
        broker = source.broker
        arguments = [sys.executable, "-m", "heliograph_spark", "archive", "--master", "local[2]", *target]
        arguments += ["--topic", source.name, "--subscription", self._SUBSCRIPTION]
        arguments += ["--service-url", broker.service_url, "--admin-url", broker.http_url]
        arguments += ["--option", f"maxBytesPerTrigger={source.trigger_bytes}", "--option", "maxEntriesPerSplit=50"]
        return Killed(arguments, state, directory / f"{name}.log")

    def finish(self) -> None:
        self.job.finish()

    def _batches(self, columns: list[str]) -> Iterator[RecordBatch]:
        yield from dataset.dataset(topic_directory(str(self.path), self._source.topic)).to_batches(columns=columns)

    def rows(self) -> Iterator[Row]:
        for batch in self._batches(["__topic", "__messageId", "__key", "value"]):
            for row in batch.to_pylist():
                at = pulsar.MessageId.deserialize(row["__messageId"])
                yield Row(bytes(row["__key"]).decode(), row["value"], _id(row["__topic"], at))

    def differences(self) -> list[str]:
        found = []
        for partition in range(self._source.partitions):
            stats = rest(self._source.broker, "GET", f"{self._source.path}-partition-{partition}/stats")
            if left := stats["subscriptions"][self._SUBSCRIPTION]["msgBacklog"]:
                found.append(f"partition {partition}: {left} messages are not acknowledged")
        return found


class Iceberg(Archive):
    """An Iceberg table of ``heliograph-spark archive``, in a catalog in SQLite."""

    _SUBSCRIPTION: ClassVar = "heliograph-iceberg"

    def __init__(self, source: Source, directory: Path) -> None:
        self._source = source
        self.path = directory / "iceberg"
        self.path.mkdir()
        warehouse = self.path.as_uri()
        self._catalog = {"type": "sql", "uri": f"sqlite:///{self.path}/catalog.db", "warehouse": warehouse}
        state = self.path / "state"
        target = ["--format", "iceberg", "--catalog", "kills", "--checkpoint", str(state)]
        for name, value in self._catalog.items():
            target += ["--catalog-property", f"{name}={value}"]
        self.job = self._job(directory, "iceberg", state, *target)

    def _scan(self, columns: Iterable[str] = ("*",)) -> DataScan:
        catalog = load_catalog("kills", **self._catalog)
        (name,) = catalog.list_tables("archive")
        try:
            return catalog.load_table(name).scan(selected_fields=tuple(columns))
        finally:
            catalog.close()

    def _batches(self, columns: list[str]) -> Iterator[RecordBatch]:
        yield from self._scan(columns).to_arrow_batch_reader()

    def differences(self) -> list[str]:
        named = {task.file.file_path.rpartition("/")[2] for task in self._scan().plan_files()}
        left = sorted({file.name for file in self.path.rglob("*.parquet")} - named)
        return [*super().differences(), *(f"{name}: a killed run has left this file" for name in left)]


class Sink:
    """Another topic, in a namespace that deduplicates."""

    def __init__(self, source: Source, directory: Path) -> None:
        self._broker = source.broker
        self._partitions = source.partitions
        namespace = f"public/{source.name}"
        rest(self._broker, "PUT", f"namespaces/{namespace}")
        rest(self._broker, "POST", f"namespaces/{namespace}/retention", _FOREVER)
        rest(self._broker, "POST", f"namespaces/{namespace}/deduplication", True)
        rest(self._broker, "PUT", f"persistent/{namespace}/target/partitions", source.partitions)
        self.topic = f"persistent://{namespace}/target"
        state = directory / "sink"
        arguments = [sys.executable, str(PROGRAM), self._broker.service_url, self._broker.http_url]
        arguments += [source.name, self.topic, str(state), str(source.trigger_bytes)]
        self.job = Killed(arguments, state, directory / "sink.log")

    def finish(self) -> None:
        self.job.finish("once")

    def rows(self) -> Iterator[Row]:
        client = connect(self._broker.service_url)
        try:
            for partition in range(self._partitions):
                name = f"{self.topic}-partition-{partition}"
                reader = client.create_reader(name, pulsar.MessageId.earliest, receiver_queue_size=10_000)
                while reader.has_message_available():
                    message = reader.read_next(DEADLINE_MS)
                    yield Row(message.partition_key(), message.data(), _id(name, message.message_id()))
                reader.close()
        finally:
            client.close()

    def differences(self) -> list[str]:
        return []


TARGETS: Mapping[str, TargetKind] = {"archive": Archive, "iceberg": Iceberg, "sink": Sink}
