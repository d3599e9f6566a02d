"""``archive``, ``maintain`` and ``replay`` with a REST catalog: each message once, whatever a commit is answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pyspark
import pytest
from heliograph_spark.jobs.archive import ArchiveOptions, ArchiveResult, Tables, archive
from heliograph_spark.jobs.archiving.topic_table import TopicTable
from heliograph_spark.jobs.maintain import MaintainOptions, maintain
from heliograph_spark.jobs.replay import ReplayOptions, replay
from heliograph_spark.run.session import Broker
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from tests.support import rest_catalog
from tests.support.broker_process import BrokerProcess
from tests.support.clients import create_namespace, publish_record, rest

pytestmark = pytest.mark.skipif(rest_catalog.missing() is not None, reason=f"{rest_catalog.missing()}")


class Order(pulsar.schema.Record):  # type: ignore[misc]
    number = pulsar.schema.Integer()


class NotedOrder(pulsar.schema.Record):  # type: ignore[misc]
    number = pulsar.schema.Integer()
    note = pulsar.schema.String()


@pytest.fixture
def uri(tmp_path: Path) -> Iterator[str]:
    """The address of a catalog without tables, with its warehouse in the test's directory."""
    with rest_catalog.rest_catalog(tmp_path, Path(pyspark.__file__).parent / "jars") as address:
        yield address


@pytest.mark.long
def test_each_message_is_in_the_table_once_whatever_a_commit_is_answered(
    spark: SparkSession,
    broker: BrokerProcess,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    uri: str,
) -> None:
    create_namespace(broker, topic, "ALWAYS_COMPATIBLE")
    name = f"persistent://public/{topic}/orders"
    # Without a subscription the broker would not keep what is published before the first run.
    holder = client.subscribe(name, "holder")
    lake = {"type": "rest", "uri": uri}
    catalog = load_catalog("lake", **lake)

    def run(gateway: str | None = None) -> ArchiveResult:
        reached = Broker(broker.service_url, broker.http_url)
        tables = Tables("lake", lake if gateway is None else lake | {"header.X-Gateway": gateway})
        state = str(tmp_path / "state")
        return archive(spark, ArchiveOptions(reached, topics=(name,), tables=tables, checkpoint=state))

    def loaded() -> Table:
        (identifier,) = catalog.list_tables("archive")
        return catalog.load_table(identifier)

    def numbers() -> list[int]:
        return sorted(loaded().scan().to_arrow()["number"].to_pylist())

    for number in range(3):
        publish_record(client, name, Order(number=number))
    # A namespace that is there need not be made.
    catalog.create_namespace("archive")
    refused = run("501 before")
    assert "Not Implemented" in str(refused.error)
    assert catalog.list_tables("archive") == []
    first = run()
    assert (first.rows, first.error) == (3, None)

    # The batch is in the table, and the run does not know.
    publish_record(client, name, Order(number=3))
    lost = run("504 after")
    assert "Gateway Timeout" in str(lost.error)
    assert (lost.rows, lost.lag) == (0, 1)
    assert numbers() == [0, 1, 2, 3]

    # The next run does not write it again, and another commit comes before that of its own batch.
    publish_record(client, name, NotedOrder(number=4, note="later"))
    whole: Callable[..., None] = TopicTable._commit
    with monkeypatch.context() as raced:

        def commit(self: TopicTable, *arguments: Any) -> None:
            with loaded().transaction() as other, other.update_snapshot().fast_append():
                pass
            whole(self, *arguments)

        raced.setattr(TopicTable, "_commit", commit)
        late = run()
    assert "has changed: expected id" in str(late.error)
    assert (late.rows, late.lag) == (0, 1)

    # Nor is it known here that nothing was changed.
    assert "Gateway Timeout" in str(run("504 before").error)
    assert numbers() == [0, 1, 2, 3]
    repeated = run()
    assert (repeated.rows, repeated.lag, repeated.error) == (1, 0, None)
    assert numbers() == list(range(5))
    files = {task.file.file_path.rpartition("/")[2] for task in loaded().scan().plan_files()}
    assert {each.name for each in tmp_path.rglob("data/**/*.parquet")} == files

    ten_days_later = loaded().metadata.last_updated_ms / 1000 + 10 * 86_400
    kept = maintain(spark, MaintainOptions(Tables("lake", lake)), lambda: ten_days_later)
    assert (kept.tables, kept.error) == (1, None)
    assert kept.merged > kept.written
    table = loaded()
    assert len(table.snapshots()) == 1
    rows = table.scan(selected_fields=("number", "note")).to_arrow().to_pylist()
    assert sorted((row["number"], row["note"]) for row in rows) == [*((each, None) for each in range(4)), (4, "later")]
    again = f"persistent://public/{topic}/again"
    rest(broker, "PUT", again.replace("://", "/"))
    given = ReplayOptions(Broker(broker.service_url, broker.http_url), None, name, again, tables=Tables("lake", lake))
    replayed = replay(spark, given)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert (replayed.rows, replayed.snapshot) == (5, snapshot.snapshot_id)
    holder.close()
