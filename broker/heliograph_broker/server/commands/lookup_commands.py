"""LOOKUP, PARTITIONED_METADATA and lists of topics: how a client finds where its topics are."""

from __future__ import annotations

from heliograph_api.protocol import wire_pb2 as wire

from heliograph_broker.messaging.base.errors import BrokerError, InvalidTopicName
from heliograph_broker.messaging.broker.topic_list import PatternTooLarge, TopicPattern, topics_hash
from heliograph_broker.server.error_codes import error_code
from heliograph_broker.server.session import Session
from heliograph_broker.usecases.topics import partitions_for_client
from heliograph_broker.usecases.unconfirmed import Creation

from .request_fields import parse_topic

_Mode = wire.CommandGetTopicsOfNamespace
#: A client with transactions asks how many coordinators there are by the partitions of this topic.
COORDINATORS = "persistent://pulsar/system/transaction_coordinator_assign"


def lookup(session: Session, command: wire.BaseCommand) -> None:
    """Answer with this broker's own address: it serves every topic."""
    request = command.lookupTopic
    began = session.broker.clock.monotonic()
    answer = wire.BaseCommand(type=wire.BaseCommand.LOOKUP_RESPONSE)
    response = answer.lookupTopicResponse
    response.request_id = request.request_id
    try:
        name = parse_topic(request.topic)
        session.broker.directory.namespace(name.namespace_name)
        urls = session.connection.listener.service_urls_for(session.connection, request.advertised_listener_name)
    except BrokerError as error:
        refuse_lookup(session, request, error)
        session.broker.metrics.lookup_answered(began, found=False)
    else:
        response.response = wire.CommandLookupTopicResponse.Connect
        # A client takes the one with TLS if it uses TLS.
        if urls.plain:
            response.brokerServiceUrl = urls.plain
        if urls.encrypted:
            response.brokerServiceUrlTls = urls.encrypted
        response.authoritative = True
        response.proxy_through_service_url = False
        session.output.send(answer)
        session.broker.metrics.lookup_answered(began, found=True)


def refuse_lookup(session: Session, request: wire.CommandLookupTopic, error: BrokerError) -> None:
    """Answer a LOOKUP with the reason why it fails."""
    answer = wire.BaseCommand(type=wire.BaseCommand.LOOKUP_RESPONSE)
    response = answer.lookupTopicResponse
    response.request_id = request.request_id
    response.response = wire.CommandLookupTopicResponse.Failed
    response.error = error_code(error)
    response.message = str(error)
    session.output.send(answer)


def partitioned_metadata(session: Session, command: wire.BaseCommand) -> None:
    """Answer with the number of partitions; 0 for a topic without, existing or yet to be created.

    A client that does not want the topic to be created hears that it is not there.
    """
    request = command.partitionMetadata
    answer = wire.BaseCommand(type=wire.BaseCommand.PARTITIONED_METADATA_RESPONSE)
    response = answer.partitionMetadataResponse
    response.request_id = request.request_id
    broker = session.broker
    creation = Creation(broker)
    try:
        name = parse_topic(request.topic)
        creation.uses(name)
        may_create = request.metadata_auto_creation_enabled
        if str(name) == COORDINATORS:
            # None: the client then says so, as with a Pulsar that has transactions switched off.
            partitions = 0
        else:
            partitions = partitions_for_client(broker, name, creation.partitioned_topic if may_create else None)
        doubtful = str(name) in broker.directory.unconfirmed
    except BrokerError as error:
        refuse_partitioned_metadata(session, request, error)
        return
    response.response = wire.CommandPartitionedTopicMetadataResponse.Success
    response.partitions = partitions
    if not doubtful:
        session.output.send(answer)
        return

    def durable(error: BrokerError | None) -> None:
        if error is not None:
            refuse_partitioned_metadata(session, request, error)
        else:
            session.output.send(answer)

    creation.when_durable(durable)


def refuse_partitioned_metadata(
    session: Session, request: wire.CommandPartitionedTopicMetadata, error: BrokerError
) -> None:
    """Answer a PARTITIONED_METADATA with the reason why it fails."""
    answer = wire.BaseCommand(type=wire.BaseCommand.PARTITIONED_METADATA_RESPONSE)
    response = answer.partitionMetadataResponse
    response.request_id = request.request_id
    response.response = wire.CommandPartitionedTopicMetadataResponse.Failed
    response.error = error_code(error)
    response.message = str(error)
    session.output.send(answer)


def topics_of_namespace(session: Session, command: wire.BaseCommand) -> None:
    """List a namespace's topics, filtered by the client's pattern if it sends one and unless it has the same list."""
    request = command.getTopicsOfNamespace
    try:
        # No error for an unknown namespace: a pattern may be subscribed to before its first topic exists.
        topics = session.broker.directory.list_topics(request.namespace, _Mode.Mode.Name(request.mode))
        filtered = request.HasField("topics_pattern")
        if filtered:
            topics = _matching(session, request.topics_pattern, topics)[1]
    except InvalidTopicName as error:
        session.output.send_error(request.request_id, wire.MetadataError, str(error))
        return
    answer = wire.BaseCommand(type=wire.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    response = answer.getTopicsOfNamespaceResponse
    response.request_id = request.request_id
    response.topics_hash = topics_hash(topics)
    response.filtered = filtered
    response.changed = not request.HasField("topics_hash") or request.topics_hash != response.topics_hash
    if response.changed:
        response.topics.extend(topics)
    session.output.send(answer)


def _matching(session: Session, text: str, topics: list[str]) -> tuple[TopicPattern, list[str]]:
    """Return a client's pattern and the topics that match, and count one that is refused as too large.

    Raises as :class:`TopicPattern` does.
    """
    try:
        pattern = TopicPattern(text)
        return pattern, pattern.of(topics)
    except PatternTooLarge:
        session.broker.metrics.limits_reached["topics_pattern"] += 1
        raise


def watch_topic_list(session: Session, command: wire.BaseCommand) -> None:
    """Answer with the list as it is and tell the client of every change from now on (persistent topics)."""
    request = command.watchTopicList
    watcher_id = request.watcher_id
    _end_watch(session, watcher_id)
    try:
        session.check_handles()
        session.broker.directory.namespace(request.namespace)
        topics = session.broker.directory.list_topics(request.namespace)
        pattern, topics = _matching(session, request.topics_pattern, topics)
    except BrokerError as error:
        session.refuse(request.request_id, error)
        return

    def update(new: list[str], deleted: list[str], list_hash: str) -> None:
        change = wire.BaseCommand(type=wire.BaseCommand.WATCH_TOPIC_UPDATE)
        change.watchTopicUpdate.watcher_id = watcher_id
        change.watchTopicUpdate.new_topics.extend(new)
        change.watchTopicUpdate.deleted_topics.extend(deleted)
        change.watchTopicUpdate.topics_hash = list_hash
        session.output.send(change)

    session.watchers[watcher_id] = session.broker.watches.watch(request.namespace, pattern, topics, update)
    answer = wire.BaseCommand(type=wire.BaseCommand.WATCH_TOPIC_LIST_SUCCESS)
    success = answer.watchTopicListSuccess
    success.request_id = request.request_id
    success.watcher_id = watcher_id
    success.topics_hash = topics_hash(topics)
    if not request.HasField("topics_hash") or request.topics_hash != success.topics_hash:
        success.topic.extend(topics)
    session.output.send(answer)


def watch_topic_list_close(session: Session, command: wire.BaseCommand) -> None:
    _end_watch(session, command.watchTopicListClose.watcher_id)
    session.succeed(command.watchTopicListClose.request_id)


def _end_watch(session: Session, watcher_id: int) -> None:
    watcher = session.watchers.pop(watcher_id, None)
    if watcher is not None:
        session.broker.watches.end(watcher)
