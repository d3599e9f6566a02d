"""The table of handlers: which function serves which command of a client.

SEND is not in it: it comes with an entry, which no other command has (see ``ConnectionHost.publish_handler``).
A command that is in neither place ends the connection with an error that names it.
"""

from __future__ import annotations

from heliograph_api.protocol import wire_pb2 as wire

from heliograph_broker.server.connection import Handler

from . import (
    connection_commands,
    consumer_commands,
    cursor_commands,
    lookup_commands,
    producer_commands,
    schema_commands,
)

_Type = wire.BaseCommand

HANDLERS: dict[int, Handler] = {
    _Type.CONNECT: connection_commands.connect,
    _Type.PING: connection_commands.ping,
    _Type.PONG: connection_commands.pong,
    _Type.LOOKUP: lookup_commands.lookup,
    _Type.PARTITIONED_METADATA: lookup_commands.partitioned_metadata,
    _Type.GET_TOPICS_OF_NAMESPACE: lookup_commands.topics_of_namespace,
    _Type.WATCH_TOPIC_LIST: lookup_commands.watch_topic_list,
    _Type.WATCH_TOPIC_LIST_CLOSE: lookup_commands.watch_topic_list_close,
    _Type.PRODUCER: producer_commands.create_producer,
    _Type.CLOSE_PRODUCER: producer_commands.close_producer,
    _Type.SUBSCRIBE: consumer_commands.subscribe,
    _Type.FLOW: consumer_commands.flow,
    _Type.ACK: cursor_commands.ack,
    _Type.REDELIVER_UNACKNOWLEDGED_MESSAGES: cursor_commands.redeliver,
    _Type.UNSUBSCRIBE: consumer_commands.unsubscribe,
    _Type.SEEK: cursor_commands.seek,
    _Type.GET_LAST_MESSAGE_ID: cursor_commands.get_last_message_id,
    _Type.CONSUMER_STATS: consumer_commands.consumer_stats,
    _Type.CLOSE_CONSUMER: consumer_commands.close_consumer,
    _Type.GET_SCHEMA: schema_commands.get_schema,
    _Type.GET_OR_CREATE_SCHEMA: schema_commands.get_or_create_schema,
    _Type.TC_CLIENT_CONNECT_REQUEST: connection_commands.refuse_transaction,
    _Type.NEW_TXN: connection_commands.refuse_transaction,
    _Type.ADD_PARTITION_TO_TXN: connection_commands.refuse_transaction,
    _Type.ADD_SUBSCRIPTION_TO_TXN: connection_commands.refuse_transaction,
    _Type.END_TXN: connection_commands.refuse_transaction,
}
