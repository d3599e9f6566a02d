"""Names: short forms, what is refused and in which words, partitions."""

from __future__ import annotations

import dataclasses

import pytest
from heliograph_api.values.names import (
    MAX_SUBSCRIPTION_NAME_BYTES,
    MAX_TOPIC_NAME_BYTES,
    InvalidName,
    NamespaceName,
    TopicName,
    check_subscription,
    decode_local,
)


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("orders", "persistent://public/default/orders"),
        ("shop/payments/orders", "persistent://shop/payments/orders"),
        ("persistent://shop/payments/orders", "persistent://shop/payments/orders"),
        ("non-persistent://shop/payments/orders", "non-persistent://shop/payments/orders"),
        ("persistent://a=b/c:d.e_f-g/orders", "persistent://a=b/c:d.e_f-g/orders"),
        ("persistent://shop/payments/eu/orders", "persistent://shop/payments/eu/orders"),
        ("Bestellungen für München", "persistent://public/default/Bestellungen für München"),
        ("50%", "persistent://public/default/50%"),
    ],
)
def test_names_are_completed(text: str, full: str) -> None:
    assert str(TopicName.parse(text)) == full
    assert TopicName.parse(full) == TopicName.parse(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty"),
        ("/", "Invalid short topic name '/'; valid: topic or tenant/namespace/topic"),
        ("shop/orders", "Invalid short topic name 'shop/orders'; valid: topic or tenant/namespace/topic"),
        ("shop/eu/payments/orders", "names with a cluster (tenant/cluster/namespace/topic) are not supported"),
        ("a/b/c/d/e", "Invalid short topic name"),
        ("queue://shop/payments/orders", "Invalid topic domain 'queue'; valid: persistent or non-persistent"),
        ("://shop/payments/orders", "Invalid topic domain ''"),
        ("persistent://shop/orders", "valid: persistent://tenant/namespace/topic"),
        ("persistent://shop/payments/", "it is empty"),
        ("persistent:///payments/orders", "Invalid tenant name ''; valid: letters, digits and the characters"),
        ("persistent://shop//orders", "Invalid namespace name ''"),
        ("persistent://sh op/payments/orders", "Invalid tenant name 'sh op'"),
        ("persistent://shöp/payments/orders", "Invalid tenant name 'shöp'"),
        ("persistent://shop/payments/orders ", "begins or ends with white space"),
        ("persistent://shop/payments/\torders", "begins or ends with white space"),
        ("persistent://shop/payments/or\0ders", "it has characters that cannot be printed"),
        ("persistent://shop/payments/or\ud800ders", "it has characters that cannot be printed"),
        ("persistent://shop/payments/or\u2028ders", "it has characters that cannot be printed"),
        ("orders -partition-1", "begins or ends with white space"),
    ],
)
def test_what_is_no_name_is_refused_with_a_reason(text: str, words: str) -> None:
    with pytest.raises(InvalidName) as caught:
        TopicName.parse(text)
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("local", "partition", "base"),
    [
        ("orders", -1, "orders"),
        ("orders-partition-0", 0, "orders"),
        ("orders-partition-12", 12, "orders"),
        ("orders-partition-01", -1, "orders-partition-01"),
        ("orders-partition--1", -1, "orders-partition--1"),
        ("orders-partition-", -1, "orders-partition-"),
        ("orders-partition-٣", -1, "orders-partition-٣"),
        ("orders-partition-1234567890", -1, "orders-partition-1234567890"),
        ("-partition-1", -1, "-partition-1"),
        ("a-partition-1-partition-2", 2, "a-partition-1"),
    ],
)
def test_partitions(local: str, partition: int, base: str) -> None:
    name = TopicName.parse(f"persistent://t/n/{local}")
    assert (name.partition, name.base.local) == (partition, base)


def test_a_partition_with_thousands_of_digits_is_just_a_name_too_long() -> None:
    with pytest.raises(InvalidName, match="at most 240"):
        TopicName.parse("orders-partition-" + "9" * 5000)


def test_with_partition_is_undone_by_base() -> None:
    name = TopicName.parse("non-persistent://t/n/orders")
    assert str(name.with_partition(7)) == "non-persistent://t/n/orders-partition-7"
    assert name.with_partition(7).base == name
    with pytest.raises(InvalidName, match="Invalid partition -1"):
        name.with_partition(-1)


def test_the_longest_name_has_partitions_and_one_byte_more_is_refused() -> None:
    longest = "é" * ((MAX_TOPIC_NAME_BYTES - len("persistent://t/n/")) // 2)
    full = f"persistent://t/n/{longest}"
    full += "x" * (MAX_TOPIC_NAME_BYTES - len(full.encode()))
    assert TopicName.parse(full).with_partition(999_999_999).partition == 999_999_999
    with pytest.raises(InvalidName, match=f"it has {MAX_TOPIC_NAME_BYTES + 1} bytes; valid: at most"):
        TopicName.parse(full + "x")


def test_the_longest_names_fit_a_key_of_the_store() -> None:
    # "cursor/", the topic with a partition's suffix, a NUL, the subscription; LMDB's keys end at 511 bytes.
    suffix = len("-partition-999999999")
    assert len("cursor/") + MAX_TOPIC_NAME_BYTES + suffix + 1 + MAX_SUBSCRIPTION_NAME_BYTES <= 511


def test_names_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TopicName.parse("orders").tenant = "other"  # type: ignore[misc]


def test_names_are_dictionary_keys() -> None:
    assert {TopicName.parse("orders"): 1}[TopicName.parse("persistent://public/default/orders")] == 1
    assert TopicName.parse("orders") != "persistent://public/default/orders"


def test_names_of_rest_paths_are_decoded() -> None:
    name = TopicName.from_path("persistent", "t", "n", "a%2Fb%20+%C3%A9%25")
    assert name.local == "a/b +é%"
    with pytest.raises(InvalidName, match="what it encodes is not UTF-8"):
        decode_local("%ff")
    with pytest.raises(InvalidName, match="cannot be printed"):
        TopicName.from_path("persistent", "t", "n", "a%00b")


def test_namespaces() -> None:
    name = NamespaceName.parse("shop/payments")
    assert (name.tenant, name.local, str(name)) == ("shop", "payments", "shop/payments")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("shop", "Invalid namespace name 'shop'; valid: tenant/namespace"),
        ("shop/eu/payments", "names with a cluster (tenant/cluster/namespace) are not supported"),
        ("shop/", "Invalid namespace name ''"),
        ("/payments", "Invalid tenant name ''"),
        ("shop/pay ments", "Invalid namespace name 'pay ments'"),
    ],
)
def test_what_is_no_namespace_is_refused_with_a_reason(text: str, words: str) -> None:
    with pytest.raises(InvalidName) as caught:
        NamespaceName.parse(text)
    assert words in str(caught.value)


def test_subscription_names() -> None:
    check_subscription("any thing/at all")
    with pytest.raises(InvalidName, match="it has 241 bytes; valid: at most 240"):
        check_subscription("s" * 241)
    with pytest.raises(InvalidName, match="cannot be printed"):
        check_subscription("a\0b")
