"""All that secures a broker is replaced while a query of Spark reads one topic and writes another: nothing is lost."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pulsar
import pytest
from heliograph_spark.run.session import Broker
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.integration.test_rotation import ROLE, Keys, prepare, serial_shown, trusts
from tests.support.clients import DEADLINE_MS, fresh_name
from tests.support.polling import eventually
from tests.support.tls_broker import TlsBroker
from tests.support.tokens import TokenFile

PAUSE_S = 0.02


class Publisher(threading.Thread):
    """Publishes numbers until it is stopped; the client that it is given renews its own token."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        super().__init__(daemon=True)
        self._producer = client.create_producer(topic)
        self._ending = threading.Event()
        self.confirmed = 0

    def run(self) -> None:
        for number in itertools.count():
            self._producer.send(b"%d" % number)
            self.confirmed = number + 1
            if self._ending.wait(PAUSE_S):
                return

    def finish(self) -> None:
        self._ending.set()
        self.join()


def numbers_in(client: pulsar.Client, topic: str) -> list[int]:
    """Return what a topic has, in its order."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(int(reader.read_next(DEADLINE_MS).data()))
    return found


def goes_on(query: StreamingQuery, publisher: Publisher) -> None:
    """Wait until the query has read what is published now, by tasks that began after this."""
    published = publisher.confirmed
    last = query.lastProgress

    def done() -> bool:
        assert query.isActive, query.exception()
        assert publisher.is_alive()
        progress = query.lastProgress
        return (
            progress is not None
            and (last is None or progress["batchId"] > last["batchId"])
            and sum(each["numInputRows"] for each in query.recentProgress) >= published
        )

    eventually(done, what="the query's next batches")


@pytest.mark.long
def test_a_query_goes_on_while_tokens_keys_and_the_certificate_are_replaced(
    spark: SparkSession, tmp_path: Path
) -> None:
    keys = Keys(tmp_path)
    old = keys.signer
    source, target = (f"persistent://public/default/{fresh_name(name)}" for name in ("from", "to"))
    tokens = TokenFile(tmp_path / "spark.token", old, ROLE)
    with (
        TlsBroker(tmp_path / "broker", "--tls-only", environment=keys.environment) as broker,
        tokens.renewed(),
    ):
        prepare(broker, old)
        client = broker.connect(authentication=pulsar.AuthenticationToken(lambda: tokens.path.read_text()))
        publisher = Publisher(client, source)
        publisher.start()
        shown = {
            "pulsar.client.authPluginClassName": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
            "pulsar.client.authParams": tokens.path.as_uri(),
            "pulsar.client.tlsTrustCertsFilePath": str(broker.trusted),
        }
        reached = Broker(broker.process.service_tls_url, broker.process.https_url, shown)
        rows = spark.readStream.format("pulsar").options(**reached.source_options(topic=source))
        written = rows.option("startingOffsets", "earliest").load().select("value").writeStream.format("pulsar")
        query = (
            written.options(**reached.source_options(topic=target))
            .option("checkpointLocation", str(tmp_path / "state"))
            .trigger(processingTime="500 milliseconds")
            .start()
        )
        try:
            goes_on(query, publisher)
            renewed = broker.authority.issue()
            broker.replace(renewed)
            new = keys.add(b"the secret that tokens are signed with after the rotation of keys")
            eventually(lambda: trusts(broker, new), what="the new key")
            tokens.signer = new
            goes_on(query, publisher)
            keys.remove()
            eventually(lambda: not trusts(broker, old), what="the end of the old key")
            eventually(lambda: serial_shown(broker) == renewed.parsed.serial_number, what="the new certificate")
            goes_on(query, publisher)
            goes_on(query, publisher)
            publisher.finish()
            query.processAllAvailable()
        finally:
            publisher.finish()
            query.stop()
        assert numbers_in(client, source) == list(range(publisher.confirmed))
        assert sorted(numbers_in(client, target)) == list(range(publisher.confirmed))
        client.close()
