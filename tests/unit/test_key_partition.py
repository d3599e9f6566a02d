"""The partition that a producer chooses for a key: hashes and partitions as the official Java client computes them."""

from __future__ import annotations

import pytest
from heliograph_broker.messaging.messages.key_partition import java_string_hash, partition_of

from tests.support.entries import make_frame


@pytest.mark.parametrize(
    ("key", "number", "of_three"),
    [
        ("", 0, 0),
        ("K", 75, 0),
        ("key-1", 101943363, 0),
        ("key-2", 101943364, 1),
        # Negative in Java before its sign is taken off, and the smallest number of all.
        ("user-42", 2000300992, 1),
        ("orders/eu", 1756771354, 1),
        ("polygenelubricants", 0, 0),
        ("negative-hash-value-of-a-long-key", 1964078381, 2),
        # Hashed by UTF-16 units: one each, and a pair.
        ("éü", 7475, 2),
        ("😀", 1772899, 1),
    ],
)
def test_a_key_has_the_hash_and_the_partition_of_the_java_client(key: str, number: int, of_three: int) -> None:
    assert java_string_hash(key) == number
    assert partition_of(make_frame(key=key)[0], 3, turn=2) == of_three


def test_messages_without_a_key_take_turns() -> None:
    metadata, _ = make_frame()
    assert [partition_of(metadata, 3, turn) for turn in range(5)] == [0, 1, 2, 0, 1]


def test_the_chunks_of_a_message_stay_together() -> None:
    chunks = [make_frame(chunk=(index, 4), sequence_id=9)[0] for index in range(4)]
    assert len({partition_of(chunk, 3, turn) for turn, chunk in enumerate(chunks)}) == 1


def test_a_key_of_bytes_is_hashed_in_its_encoding() -> None:
    metadata, _ = make_frame(key="/w==", partition_key_b64_encoded=True)
    assert partition_of(metadata, 1000, 0) == java_string_hash("/w==") % 1000
