"""Questions about messages that REST shows: the headers in which it describes an entry, and the body."""

from __future__ import annotations

import struct
import urllib.error
import urllib.request
from typing import Any

from heliograph_api.protocol import wire_pb2 as wire

from tests.support.entries import COMPRESS, Message, make_batch, make_frame
from tests.support.wire_client import Type

from .place import Answers, Place, question

#: Times of the messages: of day, and those of a whole second or of tenths, which are written shorter.
_PUBLISHED_MS = 1_600_000_000_123
_WHOLE_SECOND_MS = 1_600_000_000_000
_TENTH_MS = 1_600_000_000_500
_LATER_MS = 4_000_000_000_120


def _keys(*names: str) -> list[wire.EncryptionKeys]:
    return [
        wire.EncryptionKeys(key=name, value=name.encode() * 3, metadata=[wire.KeyValue(key="v", value="1")])
        for name in names
    ]


def _single(payload: bytes, **fields: Any) -> Message:
    return wire.SingleMessageMetadata(payload_size=len(payload), **fields), payload


def _frame(payload: bytes = b"x", **fields: Any) -> bytes:
    fields.setdefault("publish_time", _PUBLISHED_MS)
    return make_frame(payload, **fields)[1]


def _batch(*messages: bytes | Message, **fields: Any) -> bytes:
    return make_batch(*messages, publish_time=_PUBLISHED_MS, **fields)[1]


def _specimens() -> dict[str, bytes]:
    """Return entries by what is special about them."""
    text = b"text" * 50
    return {
        "plain": _frame(),
        "empty": _frame(b""),
        "published in a whole second": _frame(publish_time=_WHOLE_SECOND_MS),
        "published in a tenth of a second": _frame(publish_time=_TENTH_MS),
        "properties": _frame(properties={"a": "1", "B b": 'z"wei', "x": "line\nbreak", "empty": ""}),
        "key": _frame(key="k"),
        "key of bytes": _frame(key="a2V5", partition_key_b64_encoded=True),
        "no key": _frame(null_partition_key=True),
        "ordering key": _frame(key="k", ordering_key=b"\x00o"),
        "event time": _frame(event_time=_TENTH_MS),
        "delivery time": _frame(deliver_at=_LATER_MS),
        "no value": _frame(b"", null_value=True),
        "replicated from": _frame(replicated_from="elsewhere"),
        "sequence ids": _frame(sequence_id=7, highest_sequence_id=9),
        "schema version": _frame(schema_version=struct.pack(">Q", 3)),
        "chunk": _frame(chunk=(0, 2), total_chunk_msg_size=2),
        "compressed": _frame(COMPRESS["LZ4"](text), compression=wire.LZ4, uncompressed_size=len(text)),
        "one key of encryption": _frame(
            encryption_keys=_keys("k1"), encryption_param=b"param", encryption_algo="algorithm"
        ),
        "two keys of encryption": _frame(encryption_keys=_keys("k1", "k2"), encryption_param=b"param"),
        "batch of one": _batch(b"one"),
        "batch": _batch(
            _single(b"one", partition_key="k", event_time=_TENTH_MS, properties=[wire.KeyValue(key="a", value="1")]),
            _single(b"two", ordering_key=b"o", sequence_id=1),
            b"three",
        ),
        "compressed batch": _batch(text, text, codec="LZ4"),
        "encrypted batch": _batch(b"one", b"two", encryption_keys=_keys("k1"), encryption_param=b"param"),
    }


def _shown(url: str) -> Any:
    """Return the status, the headers about the message, and the body as Latin-1."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            about: dict[str, list[str]] = {}
            for name, value in answer.headers.items():
                if name.lower().startswith("x-pulsar-") and name != "X-Pulsar-Message-ID":
                    about.setdefault(name, []).append(value)
            return {"headers": about, "body": answer.read().decode("latin-1")}
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


@question
def peeks(place: Place) -> Answers:
    """A message of each kind, peeked at in a subscription's backlog."""
    shown: Answers = {}
    for number, (what, entry) in enumerate(_specimens().items()):
        local = f"peeked-{number}"
        name, producer, consumer = place.look_up(local), place.next_id(), place.next_id()
        place.wire.request(Type.SUBSCRIBE, Type.SUCCESS, topic=name, subscription="s", subType=0, consumer_id=consumer)
        place.wire.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=name, producer_id=producer)
        place.wire.publish(producer, entry, sequence_id=number)
        shown[what] = _shown(
            f"{place.http_url}/admin/v2/persistent/{place.namespace}/{local}/subscription/s/position/1"
        )
    return shown
