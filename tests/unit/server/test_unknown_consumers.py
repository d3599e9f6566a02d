"""Requests about a consumer that is not open on the connection are answered as Pulsar answers them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.core import Core
from tests.support.virtual_connection import VirtualServer
from tests.support.wire_client import Type


@pytest.fixture
def server(tmp_path: Path) -> Iterator[VirtualServer]:
    core = Core(tmp_path / "data")
    yield VirtualServer(core)
    core.close()


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Type.UNSUBSCRIBE, {}),
        (Type.SEEK, {"message_publish_time": 1}),
        (Type.SEEK, {"message_id": wire.MessageIdData(ledgerId=1, entryId=1)}),
        (Type.GET_LAST_MESSAGE_ID, {}),
    ],
    ids=["unsubscribe", "seek by time", "seek by id", "last message id"],
)
def test_a_request_about_an_unknown_consumer_is_a_metadata_error(
    server: VirtualServer, kind: int, fields: dict[str, Any]
) -> None:
    answer = server.connect().request(kind, consumer_id=404, **fields)
    assert (answer.error, answer.message) == (wire.MetadataError, "Consumer not found")


def test_a_seek_to_nowhere_is_a_metadata_error(server: VirtualServer) -> None:
    client = server.connect()
    client.request(Type.SUBSCRIBE, topic="t", subscription="s", subType=0, consumer_id=1)
    answer = client.request(Type.SEEK, consumer_id=1)
    assert (answer.error, answer.message) == (
        wire.MetadataError,
        "Message id and message publish time were not present",
    )
