"""Options of other connectors that this data source does not have, each with what takes its place here.

They are those of pulsar-spark, with the settings of Java's client that it passes on, and of Spark's source for Kafka.
``docs/from-pulsar-spark.md`` has the same texts.
"""

from __future__ import annotations

from collections.abc import Mapping

_READS_PEM = (
    "certificates and keys are PEM files: pulsar.client.tlsTrustCertsFilePath, tlsCertificateFilePath, tlsKeyFilePath"
)
_ONE_TIMEOUT = "one timeout is for all requests, pulsar.client.operationTimeoutMs"
_NO_ENCRYPTION = "messages are not decrypted; with badRecords=column each is kept as it is stored"
_BY_KEY = "a message's partition follows from its key, as with Java's default"

#: An option, and the reason why it is refused with the option that does it here, as a clause.
INSTEAD: Mapping[str, str] = {
    # pulsar-spark's own, of several releases.
    "maxEntriesPerTrigger": "it is maxOffsetsPerTrigger, which counts entries, too",
    "topic.schema.class": "the schema is the topic's own; there are no classes of Java here",
    "pulsar.consumer.subscriptionName": "the durable subscription is predefinedSubscription",
    "pulsar.consumer.receiverQueueSize": "it is pulsar.reader.receiverQueueSize",
    # Settings of Java's client, reader and producer.
    "pulsar.client.serviceUrl": "it is service.url",
    "pulsar.client.authParamMap": "credentials are text, in pulsar.client.authParams",
    "pulsar.client.lookupTimeoutMs": _ONE_TIMEOUT,
    "pulsar.client.requestTimeoutMs": _ONE_TIMEOUT,
    "pulsar.client.memoryLimitBytes": "what a task reads ahead is bounded by pulsar.reader.receiverQueueSize",
    "pulsar.client.useKeyStoreTls": _READS_PEM,
    "pulsar.client.tlsTrustStorePath": _READS_PEM,
    "pulsar.client.tlsKeyStorePath": _READS_PEM,
    "pulsar.client.enableTransaction": "there are no transactions; pulsar.producer.producerName stores rows once",
    "pulsar.admin.serviceUrl": "it is admin.url",
    "pulsar.reader.topicName": "it is topic, topics or topicsPattern",
    "pulsar.reader.topicNames": "it is topic, topics or topicsPattern",
    "pulsar.reader.startMessageId": "it is startingOffsets",
    "pulsar.reader.startMessageFromRollbackDurationInSec": "it is startingTime, in milliseconds since 1970",
    "pulsar.reader.resetIncludeHead": "startingOffsets always names the first message that is read",
    "pulsar.reader.cryptoFailureAction": _NO_ENCRYPTION,
    "pulsar.reader.cryptoKeyReader": _NO_ENCRYPTION,
    "pulsar.producer.topicName": "it is topic, or the column __topic",
    "pulsar.producer.messageRoutingMode": _BY_KEY,
    "pulsar.producer.hashingScheme": _BY_KEY,
    "pulsar.producer.initialSequenceId": "sequence ids follow from the rows, if there is pulsar.producer.producerName",
    "pulsar.producer.encryptionKeys": "messages are not encrypted",
    # Those of Spark's source and sink for Kafka.
    "kafka.bootstrap.servers": "it is service.url",
    "subscribe": "it is topics",
    "subscribePattern": "it is topicsPattern",
    "assign": "it is topics, with names of partitions such as orders-partition-0",
    "startingTimestamp": "it is startingTime",
    "endingTimestamp": "it is endingTime",
    "startingOffsetsByTimestamp": "it is startingTime, in JSON per topic or partition",
    "endingOffsetsByTimestamp": "it is endingTime, in JSON per topic or partition",
    "startingOffsetsByTimestampStrategy": "a time after the last message reads what is published later",
    "minOffsetsPerTrigger": "the trigger's interval says how long messages are collected",
    "maxTriggerDelay": "the trigger's interval says how long messages are collected",
    "maxRecordsPerPartition": "it is maxEntriesPerSplit",
    "kafkaConsumer.pollTimeoutMs": "it is pollTimeoutMs",
    "fetchOffset.numRetries": "questions are repeated until pulsar.client.operationTimeoutMs has passed",
    "fetchOffset.retryIntervalMs": "questions are repeated until pulsar.client.operationTimeoutMs has passed",
    "groupIdPrefix": "it is subscriptionPrefix",
    "kafka.group.id": "the durable subscription is predefinedSubscription",
}
_LOWER = {name.lower(): text for name, text in INSTEAD.items()}
#: Where no option of that name is listed: what stands for all that begin so.
_PREFIXES = {
    "kafka.": "settings of the client are under pulsar.client., pulsar.reader. and pulsar.producer.",
    "pulsar.consumer.": "settings of the reader are under pulsar.reader.",
}


def instead_of(name: str) -> str | None:
    """Return why an option of another connector is refused and what is there instead; None for any other name."""
    lower = name.lower()
    if lower in _LOWER:
        return _LOWER[lower]
    return next((text for prefix, text in _PREFIXES.items() if lower.startswith(prefix)), None)
