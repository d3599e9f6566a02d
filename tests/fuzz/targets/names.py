"""Names, sizes, durations and listeners: what is taken reads back as itself, all else is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from heliograph_api.values import durations, names, sizes
from heliograph_api.values.listeners import parse_advertised_listeners, parse_bind_addresses

from tests.fuzz.target import Finding, Source


def _topic(text: str) -> None:
    # Without its cache, which would have to be measured, too.
    name = names.TopicName.parse.__wrapped__(text)
    if names.TopicName.parse(str(name)) != name:
        raise Finding(f"{text!r}: {name!r} reads back as another")
    if names.base_name(str(name)) != str(name.base) and name.partition >= 0:
        raise Finding(f"{text!r}: its base is {name.base}, or {names.base_name(str(name))}")
    if name.partition >= 0 and name.base.partition < 0 and name.base.with_partition(name.partition) != name:
        raise Finding(f"{text!r}: its partition is another")
    str(name).encode()
    bool(name.is_system)


def _namespace(text: str) -> None:
    name = names.NamespaceName.parse(text)
    if names.NamespaceName.parse(str(name)) != name:
        raise Finding(f"{text!r}: {name} reads back as another")


def _subscription(text: str) -> None:
    name = names.SubscriptionName.parse(text)
    if names.SubscriptionName.parse(str(name)) != name:
        raise Finding(f"{text!r}: {name} reads back as another")


def _path(text: str) -> None:
    name = names.TopicName.from_path("persistent", "t", "n", text)
    if len(str(name.base).encode()) > names.MAX_TOPIC_NAME_BYTES:
        raise Finding(f"{text!r} is too long")


def _subscription_path(text: str) -> None:
    name = names.decode_subscription(text)
    names.check_subscription(name)
    if len(name.encode()) > names.MAX_SUBSCRIPTION_NAME_BYTES:
        raise Finding(f"{text!r} is too long")


def _duration(text: str) -> None:
    found = durations.parse_duration(text)
    if durations.parse_duration(durations.format_duration(found)) != found or found > durations.MAX_DURATION_MS:
        raise Finding(f"{text!r} is {found} ms, which does not read back")


def _size(text: str) -> None:
    found = sizes.parse_size(text)
    if sizes.parse_size(sizes.format_size(found)) != found or found > sizes.MAX_SIZE:
        raise Finding(f"{text!r} is {found} bytes, which does not read back")


def _listeners(text: str) -> None:
    for name, urls in parse_advertised_listeners.__wrapped__(text).items():
        schemes = [url.partition("://")[0] for url in urls if url]
        if not name or schemes not in (["pulsar"], ["pulsar+ssl"], ["pulsar", "pulsar+ssl"]):
            raise Finding(f"{text!r}: {name} {urls}")
        for url in filter(None, urls):
            if parse_advertised_listeners.__wrapped__(f"{name}:{url}")[name].first != url:
                raise Finding(f"{text!r}: {name} at {url} reads back as another")


def _addresses(text: str) -> None:
    for address in parse_bind_addresses(text):
        if not 0 < address.port < 65536:
            raise Finding(f"{text!r}: {address}")


_KINDS: list[tuple[Callable[[Any], None], type[ValueError]]] = [
    (_topic, names.InvalidName),
    (_namespace, names.InvalidName),
    (_subscription, names.InvalidName),
    (_path, names.InvalidName),
    (_subscription_path, names.InvalidName),
    (_duration, durations.InvalidDuration),
    (_size, sizes.InvalidSize),
    (_listeners, ValueError),
    (_addresses, ValueError),
]


def run(data: bytes) -> None:
    source = Source(data)
    check, refusal = source.choose(_KINDS)
    text = source.rest().decode("utf-8", "surrogateescape")
    try:
        check(text)
    except refusal as error:
        if type(error) is not refusal:
            raise
        # It is logged and sent to the client.
        str(error).encode("utf-8", "surrogateescape")


_SEEDS = [
    [
        "orders",
        "t/n/orders",
        "persistent://t/n/a/b-partition-3",
        "non-persistent://t/n/x",
        "t/c/n/x",
        "pulsar/system/x",
    ],
    ["t/n", "t/c/n", "public/default"],
    ["persistent://t/n/x/subscription/a%2Fb", "x/subscription/s"],
    ["a%2Fb", "%ff", "x" * 240, "a-partition-0-partition-1"],
    ["a%2Fb+c", "%ff", "\u00e4", "x" * 241],
    ["500ms", "1.5h", "7d", "infinite", "-1", "0", "9223372036854775807ms"],
    ["10G", "1.5Gi", "infinite", "-1", "9223372036854775807", "512"],
    ["internal:pulsar://b:6650,external:pulsar://[::1]:6651", "a:http://b:1", "a:pulsar+ssl://b:1,a:pulsar://b:2"],
    ["external:pulsar://0.0.0.0:6652", "a:pulsar://*:70000", "a:pulsar+ssl://*:1"],
]


def seeds() -> Iterator[bytes]:
    for kind, texts in enumerate(_SEEDS):
        for text in texts:
            yield bytes([kind]) + text.encode()
