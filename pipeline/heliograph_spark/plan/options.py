"""The options of ``format("pulsar")``: the Scala connector's names and defaults, each understood or refused by name.

Spark hands over names in lower case, so they are compared so; texts of errors use the usual spelling.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .dead_letters import DeadLetterRule
from .errors import OptionError
from .other_connectors import instead_of
from .positions import Edge, Position, parse_offsets, parse_times
from .sending import SendSettings, compression

log = logging.getLogger(__name__)

#: Spark's own, which it hands to every source and sink.
_SPARKS_OWN = frozenset({"path", "checkpointlocation", "queryname", "outputmode", "triggerinterval"})
#: Spark hands it over only where a table of its catalog is created.
_CATALOG = "provider"
_TOPIC_NAMES = ("topic", "topics", "topicsPattern")
_READ = (
    *("startingOffsets", "endingOffsets", "startingTime", "endingTime", "failOnDataLoss", "allowDifferentTopicSchemas"),
    *(
        "maxBytesPerTrigger",
        "maxOffsetsPerTrigger",
        "maxEntriesPerSplit",
        "minPartitions",
        "predefinedSubscription",
        "subscriptionPrefix",
        "pollTimeoutMs",
        "includeColumns",
        "includeHeaders",
        "badRecords",
        "deadLetterTopic",
    ),
    *("waitingForNonExistedTopic", "acknowledgePredefinedSubscription", "pushDownFilters", "publishTimeSkewMs"),
)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("neither true nor false")
    return text.lower() == "true"


def _positive(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text) or int(text) == 0:
        raise ValueError("not a whole number above zero")
    return int(text)


def _milliseconds(text: str) -> int:
    if not re.fullmatch(r"\d{1,15}", text):
        raise ValueError("not a number of milliseconds")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",")))


def _bad_records(text: str) -> str:
    if text.lower() not in ("fail", "column", "deadletter"):
        raise ValueError("neither fail nor column nor deadLetter")
    return text.lower()


def _divided(by: int) -> Callable[[str], int]:
    return lambda text: max(1, -(-_positive(text) // by))


#: A setting of Java's clients: its name there, its name here, and how its value is read.
_PASSED: dict[str, tuple[str, Callable[[str], Any]]] = {
    "pulsar.client.authPluginClassName": ("auth_plugin", str),
    "pulsar.client.authParams": ("auth_params", str),
    "pulsar.client.operationTimeoutMs": ("operation_timeout_seconds", _divided(1000)),
    "pulsar.client.connectionTimeoutMs": ("connection_timeout_ms", _positive),
    "pulsar.client.listenerName": ("listener_name", str),
    "pulsar.client.useTls": ("use_tls", _boolean),
    "pulsar.client.tlsTrustCertsFilePath": ("tls_trust_certs_file_path", str),
    "pulsar.client.tlsAllowInsecureConnection": ("tls_allow_insecure_connection", _boolean),
    "pulsar.client.tlsHostnameVerificationEnable": ("tls_validate_hostname", _boolean),
    "pulsar.client.tlsCertificateFilePath": ("tls_certificate_file_path", str),
    "pulsar.client.tlsKeyFilePath": ("tls_private_key_file_path", str),
    "pulsar.admin.authPluginClassName": ("auth_plugin", str),
    "pulsar.admin.authParams": ("auth_params", str),
    "pulsar.admin.tlsTrustCertsFilePath": ("tls_trust_certs_file_path", str),
    "pulsar.admin.tlsAllowInsecureConnection": ("tls_allow_insecure_connection", _boolean),
    "pulsar.reader.receiverQueueSize": ("receiver_queue_size", _positive),
    "pulsar.reader.readerName": ("reader_name", str),
    "pulsar.reader.subscriptionRolePrefix": ("subscription_role_prefix", str),
    "pulsar.reader.readCompacted": ("is_read_compacted", _boolean),
    "pulsar.producer.producerName": ("producer_name", str),
    "pulsar.producer.sendTimeoutMs": ("send_timeout_ms", _positive),
    "pulsar.producer.maxPendingMessages": ("max_pending_messages", _positive),
    "pulsar.producer.maxPendingMessagesAcrossPartitions": ("max_pending_messages_across_partitions", _positive),
    "pulsar.producer.batchingEnabled": ("batching_enabled", _boolean),
    "pulsar.producer.batchingMaxMessages": ("batching_max_messages", _positive),
    "pulsar.producer.batchingMaxBytes": ("batching_max_bytes", _positive),
    "pulsar.producer.batchingMaxPublishDelayMicros": ("batching_max_publish_delay_us", _positive),
    "pulsar.producer.chunkingEnabled": ("chunking_enabled", _boolean),
    "pulsar.producer.compressionType": ("compression", compression),
}
#: Settings of Java's client that queries of the Scala connector have and that change nothing here, with the reason.
_WITHOUT_EFFECT = {
    "pulsar.client.numIoThreads": "there are no threads for it: who waits for an answer reads it",
    "pulsar.client.numListenerThreads": "there are no listeners",
    "pulsar.client.connectionsPerBroker": "a process has one connection to each broker, which its tasks share",
    "pulsar.client.statsIntervalSeconds": "the client's statistics are not logged",
    "pulsar.client.useTcpNoDelay": "it is always on",
    "pulsar.reader.subscriptionName": "readers have their own subscriptions; predefinedSubscription is the durable one",
    "pulsar.producer.blockIfQueueFull": "a task always waits for its queue",
    "pulsar.producer.autoUpdatePartitions": "each task looks up the partitions when it begins",
}
#: The client's authentications, by their names without the package.
_AUTHENTICATIONS = ("AuthenticationToken", "AuthenticationBasic", "AuthenticationTls", "AuthenticationOAuth2")


@dataclass(frozen=True, slots=True)
class Connection:
    """The connection to the broker; ``client`` are the settings of the protocol's, ``admin`` those of the REST API."""

    service_url: str
    admin_url: str | None
    client: Mapping[str, Any]
    admin: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a read. Exactly one of ``topics`` and ``pattern`` is given; times are in milliseconds since 1970.

    ``starting`` and ``ending`` are an edge, a time for all topics, or offsets or times per topic; a position names the
    first and the last message to read.
    """

    connection: Connection
    topics: tuple[str, ...]
    pattern: str | None
    starting: Edge | int | Mapping[str, Edge | Position | int] | None
    ending: Edge | int | Mapping[str, Edge | Position | int]
    reader: Mapping[str, Any]
    fail_on_data_loss: bool = True
    raw_values: bool = False
    #: The limits of a micro-batch, of which there is one at most: about so many bytes, or so many entries.
    max_bytes: int | None = None
    max_offsets: int | None = None
    max_entries: int = 25_000
    #: With the ledgers known, a query has at least so many splits, as far as it has entries.
    min_splits: int | None = None
    subscription: str | None = None
    poll_timeout_ms: int = 120_000
    wait_for_topic: bool = False
    #: False if somebody else holds the subscription and acknowledges.
    acknowledges: bool = True
    #: Whether a batch query leaves out what its filters do not want, before reading.
    push_down: bool = False
    #: By how much (ms) a message's publish time may differ from when the broker received it.
    skew_ms: int = 600_000
    #: The columns of metadata that a query has beside the usual ones, by their names.
    columns: tuple[str, ...] = ()
    #: Whether a message's properties are a column as Kafka's headers, too.
    headers: bool = False
    #: Whether what cannot be read becomes a column instead of ending the query.
    keeps_bad: bool = False
    #: Where what cannot be read is published instead of ending the query; None if it is not.
    dead_letters: DeadLetterRule | None = None

    @property
    def looks_for_loss(self) -> bool:
        """Whether lost messages end the query."""
        return self.fail_on_data_loss and self.notices_loss

    @property
    def notices_loss(self) -> bool:
        """Whether messages that are not stored any more are lost; the compacted view has some, and lacks others."""
        return not self.reads_compacted

    @property
    def reads_compacted(self) -> bool:
        """Whether the compacted view is read."""
        return bool(self.reader.get("is_read_compacted"))

    @property
    def one_by_one(self) -> dict[str, Any]:
        """The settings of a reader that asks for places and reads hardly anything."""
        return {"receiver_queue_size": 1, "is_read_compacted": self.reads_compacted}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write; without ``topic`` rows name it. With ``producer_name`` sequence ids come from the rows."""

    connection: Connection
    topic: str | None
    producer_name: str | None
    sending: SendSettings = field(default_factory=SendSettings)


class _Given:
    """The options as Spark passes them; reading one removes it, so that those left over are unknown."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str]) -> None:
        self._spelling = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        for name, value in options.items():
            spelled = self._spelling.get(name.lower())
            if spelled is not None and spelled in _WITHOUT_EFFECT:
                log.warning("option %s has no effect: %s", spelled, _WITHOUT_EFFECT[spelled])
            elif spelled is not None:
                self._values[spelled] = value
            elif name.lower() == _CATALOG:
                raise OptionError(
                    "a table of the catalog: Spark gives its options to no Python data source (create a temporary view)"
                )
            elif (instead := instead_of(name)) is not None:
                raise OptionError(f"option {name!r} is not known here: {instead}")
            elif name.lower() not in _SPARKS_OWN:
                close = difflib.get_close_matches(name.lower(), self._spelling, 1)
                raise OptionError(
                    f"option {name!r} is not known here" + (f"; is it {self._spelling[close[0]]!r}?" if close else "")
                )

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is not None and not value.strip():
            raise OptionError(f"{name}: is empty")
        return value

    def read(self, name: str, convert: Callable[[str], Any], default: Any) -> Any:
        text = self.text(name)
        if text is None:
            return default
        try:
            return convert(text)
        except ValueError as error:
            raise OptionError(f"{name}: {text!r} is {error}") from error

    def passed(self, kind: str) -> dict[str, Any]:
        """Return the settings under ``pulsar.<kind>.``, by their names here."""
        found = {}
        for name, (setting, convert) in _PASSED.items():
            if name.startswith(f"pulsar.{kind}.") and name in self._values:
                found[setting] = self.read(name, convert, None)
        return found

    def connection(self) -> Connection:
        url = self.text("service.url")
        if url is None:
            raise OptionError("service.url: is missing, such as pulsar://localhost:6650")
        if not re.fullmatch(r"pulsar(\+ssl)?://\S+", url):
            raise OptionError(f"service.url: {url!r} is not an address such as pulsar://localhost:6650")
        # Pulsar's clients do not check the name by default; anybody with a certificate of a trusted authority passes.
        client, admin = {"tls_validate_hostname": True} | self.passed("client"), self.passed("admin")
        for whose, settings in (("client", client), ("admin", client | admin)):
            if settings.get("auth_params") and "auth_plugin" not in settings:
                raise OptionError(
                    f"pulsar.{whose}.authParams: needs pulsar.{whose}.authPluginClassName, too, such as"
                    " org.apache.pulsar.client.impl.auth.AuthenticationToken"
                )
            if (kind := auth_kind(settings)) and kind not in _AUTHENTICATIONS:
                raise OptionError(
                    f"pulsar.{whose}.authPluginClassName: {settings['auth_plugin']!r} is not known here; valid:"
                    f" {', '.join(_AUTHENTICATIONS)}"
                )
        shared = ("auth_plugin", "auth_params", "tls_trust_certs_file_path", "tls_allow_insecure_connection")
        files = ("tls_certificate_file_path", "tls_private_key_file_path")
        admin = {name: client[name] for name in (*shared, *files) if name in client} | admin
        admin_url = self.text("admin.url")
        if admin_url is not None and not re.fullmatch(r"https?://\S+", admin_url):
            raise OptionError(f"admin.url: {admin_url!r} is not an address such as http://localhost:8080")
        return Connection(url, admin_url.rstrip("/") if admin_url else None, client, admin)


def _known(*kinds: str) -> list[str]:
    return [
        "service.url",
        "admin.url",
        *(name for name in (*_PASSED, *_WITHOUT_EFFECT) if name.split(".")[1] in ("client", "admin", *kinds)),
    ]


def full_name(topic: str) -> str:
    """Return a topic's whole name, by default in ``persistent://public/default/``. Raises :class:`OptionError`."""
    name = topic if "://" in topic else f"persistent://{topic if topic.count('/') == 2 else 'public/default/' + topic}"
    if not re.fullmatch(r"(non-)?persistent://[^/\s]+/[^/\s]+/[^\s]+", name) or (
        "://" not in topic and topic.count("/") not in (0, 2)
    ):
        raise OptionError(
            f"{topic!r} is not the name of a topic; valid: NAME, TENANT/NAMESPACE/NAME or"
            " persistent://TENANT/NAMESPACE/NAME"
        )
    if name.startswith("non-"):
        raise OptionError(f"{topic!r} is not stored: only persistent topics can be read again")
    return name


def _full_name(option: str, topic: str) -> str:
    """As :func:`full_name`; the error names the option."""
    try:
        return full_name(topic)
    except OptionError as error:
        raise OptionError(f"{option}: {error}") from error


def names_of(topics: Sequence[str]) -> list[dict[str, str]]:
    """Return the options of the reads that together read ``topics``: one, and one for each with a comma in its name.

    A comma divides the list of topics of one read.
    """
    listed = [topic for topic in topics if "," not in topic]
    alone = [{"topic": topic} for topic in topics if "," in topic]
    return [*([{"topics": ",".join(listed)}] if listed else []), *alone]


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Understand the options of a reading query. Raises :class:`OptionError`, naming the option."""
    given = _Given(options, (*_known("reader"), *_TOPIC_NAMES, *_READ))
    chosen = [name for name in _TOPIC_NAMES if given.text(name) is not None]
    if len(chosen) != 1:
        raise OptionError(
            f"exactly one of topic, topics and topicsPattern is needed, not {' and '.join(chosen) or 'none'}"
        )
    pattern = given.text("topicsPattern")
    listed = (given.text("topics") or "").split(",") if chosen == ["topics"] else [given.text("topic") or ""]
    topics = () if pattern else tuple(dict.fromkeys(_full_name(chosen[0], each.strip()) for each in listed))
    connection = given.connection()
    if pattern is not None:
        _check_pattern(pattern)
    max_bytes = given.read("maxBytesPerTrigger", _positive, None)
    max_offsets = given.read("maxOffsetsPerTrigger", _positive, None)
    if max_bytes is not None and max_offsets is not None:
        raise OptionError("maxBytesPerTrigger and maxOffsetsPerTrigger: only one of them can limit a micro-batch")
    min_splits = given.read("minPartitions", _positive, None)
    asked_of_admin = {
        "topicsPattern": pattern,
        "maxBytesPerTrigger": max_bytes,
        "maxOffsetsPerTrigger": max_offsets,
        "minPartitions": min_splits,
    }
    for name, wanted in asked_of_admin.items():
        if wanted is not None and connection.admin_url is None:
            raise OptionError(f"{name}: needs admin.url, such as http://localhost:8080")
    if streaming and (endings := [each for each in ("endingOffsets", "endingTime") if given.text(each)]):
        raise OptionError(f"{endings[0]}: a stream has no end; it is for batch queries")
    starting = _place(given, "starting")
    ending = _place(given, "ending")
    if not streaming and _has(starting, "latest"):
        raise OptionError("startingOffsets: 'latest' is for streams; a batch query would read nothing")
    if _has(ending, "earliest"):
        raise OptionError("endingOffsets: 'earliest' would read nothing")
    prefix = given.text("subscriptionPrefix")
    bad_records = given.read("badRecords", _bad_records, "fail")
    return ReadOptions(
        connection=connection,
        topics=topics,
        pattern=pattern,
        starting=starting,
        ending=ending if ending is not None else "latest",
        reader=given.passed("reader") | ({"subscription_role_prefix": prefix} if prefix else {}),
        fail_on_data_loss=given.read("failOnDataLoss", _boolean, True),
        raw_values=given.read("allowDifferentTopicSchemas", _boolean, False),
        max_bytes=max_bytes,
        max_offsets=max_offsets,
        max_entries=given.read("maxEntriesPerSplit", _positive, 25_000),
        min_splits=min_splits,
        subscription=given.text("predefinedSubscription"),
        poll_timeout_ms=given.read("pollTimeoutMs", _positive, 120_000),
        wait_for_topic=given.read("waitingForNonExistedTopic", _boolean, False),
        acknowledges=given.read("acknowledgePredefinedSubscription", _boolean, True),
        push_down=given.read("pushDownFilters", _boolean, False),
        skew_ms=given.read("publishTimeSkewMs", _milliseconds, 600_000),
        columns=given.read("includeColumns", _names, ()),
        headers=given.read("includeHeaders", _boolean, False),
        keeps_bad=bad_records == "column",
        dead_letters=_dead_letters(given, publishes=bad_records == "deadletter"),
    )


def _dead_letters(given: _Given, *, publishes: bool) -> DeadLetterRule | None:
    topic, subscription = given.text("deadLetterTopic"), given.text("predefinedSubscription")
    if not publishes:
        if topic is not None:
            raise OptionError("deadLetterTopic: needs badRecords=deadLetter")
        return None
    if topic is None and subscription is None:
        raise OptionError("deadLetterTopic: is needed for badRecords=deadLetter without predefinedSubscription")
    return DeadLetterRule(_full_name("deadLetterTopic", topic) if topic else None, subscription)


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Understand the options of a writing query. Raises :class:`OptionError`, naming the option."""
    given = _Given(options, (*_known("producer"), "topic"))
    topic = given.text("topic")
    producer = given.passed("producer")
    name = producer.pop("producer_name", None)
    if name and producer.get("chunking_enabled"):
        raise OptionError(
            "pulsar.producer.chunkingEnabled: cannot be combined with producerName, by which each message is stored"
            " once: the first chunks of one that is sent again are stored again"
        )
    target = _full_name("topic", topic) if topic else None
    return WriteOptions(given.connection(), target, name, SendSettings.of(producer))


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionError(f"topicsPattern: {pattern!r} is not a regular expression: {error}") from error


def _place(given: _Given, edge: str) -> Any:
    offsets, times = given.text(f"{edge}Offsets"), given.text(f"{edge}Time")
    if offsets is not None and times is not None:
        raise OptionError(f"{edge}Offsets and {edge}Time: only one of them can say where the query's {edge} is")
    option = f"{edge}Offsets" if offsets is not None else f"{edge}Time"
    if offsets is not None:
        place: Any = parse_offsets(option, offsets)
    elif times is not None:
        place = parse_times(option, times)
    else:
        return None
    if not isinstance(place, dict):
        return place
    found = {_full_name(option, topic): each for topic, each in place.items()}
    if len(found) < len(place):
        raise OptionError(f"{option}: one topic has several values, by its name and by its whole name: {list(place)}")
    return found


def _has(place: Any, edge: str) -> bool:
    return place == edge or (isinstance(place, dict) and edge in place.values())


def auth_kind(settings: Mapping[str, Any]) -> str:
    """Return the client's authentication that its settings name, without the package; empty if none."""
    return str(settings.get("auth_plugin", "")).rsplit(".", 1)[-1]


def auth_files(params: str) -> dict[str, str]:
    """Return the files that ``authParams`` of ``AuthenticationTls`` name: ``tlsCertFile:…,tlsKeyFile:…``."""
    return dict(part.split(":", 1) for part in params.split(",") if ":" in part)


def auth_token(params: str) -> str:
    """Return the token of ``authParams``: ``token:…``, ``file:…``, itself, or JSON. Raises :class:`OptionError`."""
    token = _auth_token(params).strip()
    if not (token.isascii() and token.isprintable()) or " " in token:
        # A header with it would be refused with the token in the error.
        raise OptionError("authParams: the token has spaces, line breaks or other characters that no token has")
    return token


def _auth_token(params: str) -> str:
    if params.startswith("token:"):
        return params.removeprefix("token:")
    if params.startswith("file:"):
        path = params.removeprefix("file:")
        try:
            with open(path.removeprefix("//"), encoding="ascii") as file:
                return file.read()
        except (OSError, ValueError) as error:
            raise OptionError(f"authParams: the token's file cannot be read: {error}") from error
    if params.startswith("{"):
        try:
            return str(json.loads(params)["token"])
        except (ValueError, KeyError) as error:
            raise OptionError("authParams: this JSON holds no token") from error
    return params


def basic_user(option: str, params: str) -> str:
    """Return ``user:password`` from the JSON of the option. Raises :class:`OptionError`, naming the option.

    Raises :class:`OptionError`, naming the option.
    """
    try:
        given = json.loads(params)
        # As Java's client names it, or C++'s.
        user = given["userId"] if "userId" in given else given["username"]
        return f"{user}:{given['password']}"
    except (ValueError, KeyError, TypeError) as error:
        # The value may be a password, so the error does not repeat it.
        raise OptionError(f'{option}: AuthenticationBasic needs {{"userId": "…", "password": "…"}}') from error
