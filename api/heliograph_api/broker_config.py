"""The settings of one broker process. For policies of topics see :mod:`heliograph_api.resources`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from heliograph_api.values.comma_separated import comma_separated
from heliograph_api.values.issuers import KUBERNETES, parse_audiences, parse_issuers
from heliograph_api.values.listeners import (
    ENCRYPTED,
    PLAIN,
    is_loopback,
    parse_advertised_listeners,
    parse_bind_addresses,
)
from heliograph_api.values.quoting import quoted

ENVIRONMENT_PREFIX = "HELIOGRAPH_"

METRICS_LEVELS = ("topic", "namespace", "broker")

AUTH_METHODS = ("token", "tls", "basic", "oidc")

_KIB = 1024
_MIB = 1024 * _KIB
_MINUTE_MS = 60_000

RANGES: Final[Mapping[str, tuple[int, int | None]]] = {
    "broker_port": (0, 65535),
    "http_port": (0, 65535),
    "metrics_port": (0, 65535),
    "broker_tls_port": (0, 65535),
    "https_port": (0, 65535),
    "default_partitions": (0, None),
    "max_unacked_per_consumer": (0, None),
    "max_unacked_per_subscription": (0, None),
    "disk_reserve_bytes": (0, None),
    "max_message_size": (1, None),
    "ledger_max_entries": (1, None),
    "ledger_max_age_ms": (1, None),
    "ledger_max_bytes": (1, None),
    "deduplication_inactivity_ms": (1, None),
    "max_connections": (0, None),
    "max_connections_per_address": (0, None),
    "max_connections_per_role": (0, None),
    "max_handles_per_connection": (0, None),
    "max_namespaces_per_tenant": (0, None),
    "max_topics_per_tenant": (0, None),
    "max_subscriptions_per_tenant": (0, None),
    "reserved_descriptors": (0, None),
    "scrub_bytes_per_s": (0, None),
    # The beginning of a frame is kept beside it, so it must take many.
    "receive_buffer_bytes": (16 * _KIB, None),
    "max_pending_publish_bytes": (1, None),
    "max_connection_write_bytes": (1, None),
    "connection_memory_bytes": (0, None),
    "tail_cache_bytes": (0, None),
    # A segment that could not hold the largest entry would be closed empty forever.
    "segment_bytes": (_MIB, None),
}
"""The minimum and maximum (``None``: none) of a setting that is a whole number."""


class BrokerConfig(msgspec.Struct, frozen=True):
    """Sizes are bytes, times carry their unit in the name. Raises :class:`ValueError` for a setting out of range."""

    cluster_name: str = "standalone"
    """Name of the cluster, the only one that tenants and namespaces may refer to."""
    data_dir: str = "heliograph-data"
    """Data directory; created if missing."""

    bind: str = "127.0.0.1"
    """Address that the ports bind to; ``*``: all addresses, of IPv4 and of IPv6."""
    broker_port: int = 6650
    """Port of the binary protocol; 0: any free port."""
    http_port: int = 8080
    """Port of the admin API, lookup, metrics and health checks; 0: any free port."""
    metrics_port: int = 0
    """Port that serves the metrics and nothing else, beside the HTTP port; 0: none."""
    advertised_host: str = ""
    """Host that lookups return to clients; empty: the address the client connected to."""
    advertised_listeners: str = ""
    """Addresses that lookups return by the name of a listener: ``name:pulsar://host:port``, separated by commas.

    A listener may have two, the other one for clients that use TLS: ``name:pulsar+ssl://host:port``.
    """
    internal_listener_name: str = ""
    """Listener whose address lookups without a name return; empty: the first of ``advertised_listeners``."""
    bind_addresses: str = ""
    """Further ports, each for a listener: ``name:pulsar://host:port``, separated by commas; host ``*``: all addresses.

    ``name:pulsar+ssl://host:port`` is one with TLS. A client that comes in by one and asks for no listener by name gets
    the address of that listener.
    """

    tls_cert: str = ""
    """File of the broker's certificate in PEM, followed by those of intermediate authorities; empty: no TLS.

    It is read again when its content changes, as are ``tls_key`` and ``tls_client_ca``.
    """
    tls_key: str = ""
    """File of the private key of ``tls_cert`` in PEM, without a passphrase."""
    tls_client_ca: str = ""
    """File of the authorities in PEM by which certificates of clients are verified; empty: none are asked for."""
    tls_require_client_certificate: bool = False
    """Whether clients without a certificate are refused; otherwise one that is sent is verified."""
    broker_tls_port: int = 6651
    """Port of the binary protocol with TLS, if ``tls_cert`` is set; 0: any free port."""
    https_port: int = 8443
    """Port of HTTP with TLS, if ``tls_cert`` is set; 0: any free port."""
    tls_only: bool = False
    """Whether ``broker_port`` and ``http_port``, which are without TLS, stay closed."""

    max_message_size: int = 5 * _MIB
    """Largest entry (a message, or a client's batch as it is on the wire) a producer may send."""
    keep_alive_interval_s: float = 30.0
    """A PING is sent after this time without data from the client; after the same time again it is disconnected."""
    max_connections: int = 10_000
    """Maximum connections of each port; further ones are refused. 0: limited by file descriptors only."""
    max_connections_per_address: int = 5_000
    """Maximum connections of each port from one address; 0: no limit."""
    max_connections_per_role: int = 0
    """Maximum connections of clients of one role to the binary ports, with authentication; 0: no limit."""
    max_handles_per_connection: int = 20_000
    """Maximum producers, consumers, readers and topic watchers of one connection; 0: no limit."""
    max_namespaces_per_tenant: int = 0
    """Maximum namespaces of each tenant; 0: no limit."""
    max_topics_per_tenant: int = 0
    """Maximum topics of each tenant, every partition for itself; 0: no limit."""
    max_subscriptions_per_tenant: int = 0
    """Maximum subscriptions of each tenant, on every partition for itself; 0: no limit."""
    reserved_descriptors: int = 1024
    """File descriptors kept for the store, which needs three for each payload file; at most half of all are kept."""
    handshake_timeout_s: float = 10.0
    """A connection that has not sent CONNECT after this time is disconnected."""
    close_timeout_s: float = 5.0
    """Time a client has to read the remaining data of a connection that the broker closes."""

    tail_cache_bytes: int = 32 * _MIB
    """Payload of recent entries kept in memory for consumers that keep up, all topics together."""
    segment_bytes: int = 128 * _MIB
    """A payload file is closed and a new one started at about this size."""
    scrub_bytes_per_s: int = 4 * _MIB
    """Rate at which closed payload files are verified in the background; a quarter of it under traffic. 0: never."""
    scrub_interval_s: float = 7 * 86_400.0
    """Shortest time between the starts of two verifications of all closed payload files."""
    disk_reserve_bytes: int = 64 * _MIB
    """New messages are refused when less than this would stay free on the disk; acknowledgements are not."""
    ledger_max_entries: int = 50_000
    """A ledger is closed and a new one started at this number of entries."""
    ledger_max_age_ms: int = 240 * _MINUTE_MS
    """A ledger that holds entries is closed at this age."""
    ledger_max_bytes: int = 2048 * _MIB
    """A ledger is closed and a new one started when its entries reach this size."""

    max_unacked_per_consumer: int = 50_000
    """Maximum unacknowledged messages of a Shared or Key_Shared consumer; at it dispatch pauses. 0: no limit."""
    max_unacked_per_subscription: int = 200_000
    """Maximum unacknowledged messages of all consumers of a subscription; 0: no limit."""
    batch_index_ack: bool = True
    """Whether single messages of a batch can be acknowledged; otherwise only whole batches."""

    subscription_key_shared_use_consistent_hashing: bool = True
    """Whether Key_Shared divides keys by consistent hashing; otherwise each consumer has one range of the hashes.

    Consumers that declare their ranges (STICKY) keep them.
    """
    subscription_key_shared_spread_keyless: bool = False
    """Whether messages without a key go to all consumers of a Key_Shared subscription; otherwise to one, in order."""
    subscription_key_shared_join_at_read_position: bool = False
    """Whether a new Key_Shared consumer waits until everything delivered before it joined is acknowledged.

    Otherwise it waits, key by key, until what others hold of a key is acknowledged.
    """

    compaction_retain_null_key: bool = False
    """Whether compaction keeps messages without a key."""

    allow_auto_topic_creation: bool = True
    """Whether producing or subscribing to a missing topic creates it."""
    default_partitions: int = 0
    """Partitions of automatically created topics; 0: not partitioned."""
    allow_auto_subscription_creation: bool = True
    """Whether subscribing creates a missing subscription."""
    enable_non_persistent_topics: bool = True
    """Whether clients may use, and anybody may create, non-persistent topics."""

    auth: str = ""
    """Methods by which clients authenticate, separated by commas; empty: none, and every client may do everything."""
    token_secret_key: str = ""
    """Files of secrets that sign tokens, separated by commas: ``path``, ``file:///path`` or ``data:;base64,TEXT``."""
    token_public_key: str = ""
    """Files of public keys of pairs that sign tokens, in the same form."""
    token_audience: str = ""
    """Audience (claim ``aud``) that tokens must have; empty: any or none."""
    token_role_claim: str = "sub"
    """Claim of a token that holds the client's role."""
    oidc_issuer: str = ""
    """Issuers (OpenID Connect) whose tokens are accepted, by their URLs, separated by commas; empty: none."""
    oidc_audience: str = ""
    """Audiences of issuers' tokens, separated by commas: a token must be for one of them."""
    oidc_audience_by_issuer: str = ""
    """Audiences of single issuers, as ISSUER=AUDIENCE, separated by commas: those of `oidc_audience` are not theirs.

    `kubernetes=AUDIENCE` is for tokens of service accounts.
    """
    oidc_role_claim: str = "sub"
    """Claim of issuers' tokens that holds the role; the first one of a list counts."""
    oidc_ca: str = ""
    """File with the certificate authorities (PEM) of issuers' servers; empty: those of the system."""
    oidc_kubernetes: bool = False
    """Whether tokens of service accounts of the Kubernetes that the broker runs in are accepted.

    The role is `system:serviceaccount:NAMESPACE:NAME`. They need an audience, too.
    """
    basic_file: str = ""
    """File of users and their passwords' hashes, as `htpasswd -B` writes it."""
    superusers: str = ""
    """Roles that may do everything, separated by commas."""
    monitors: str = ""
    """Roles that may read metrics and statistics of the whole broker, and nothing else, separated by commas."""
    backups: str = ""
    """Roles that may fetch backups of the whole broker, and nothing else, separated by commas."""
    proxies: str = ""
    """Roles of proxies, separated by commas: they speak for other roles, which they name, and never for themselves."""
    anonymous_role: str = ""
    """Role of clients without credentials; empty: they are refused."""
    auth_refresh_check_s: float = 60.0
    """Clients with expired credentials are asked for new ones within this time, and have as long again to send them."""

    insecure: bool = False
    """Whether the ports may be reached from other machines without authentication."""

    metrics_level: str = "topic"
    """Granularity of /metrics: "topic", "namespace" or "broker"."""

    deduplication_inactivity_ms: int = 360 * _MINUTE_MS
    """Deduplication forgets a producer that was disconnected for this time."""

    receive_buffer_bytes: int = 256 * _KIB
    """Size of the read buffer that all connections share, and the most bytes of one read from a socket."""
    max_pending_publish_bytes: int = 16 * _MIB
    """Reading from publishing connections pauses while this many received bytes are not yet durable."""
    max_connection_write_bytes: int = _MIB
    """Dispatch to a connection pauses while this many bytes wait to be written to it.

    At twice this value, reading from it pauses, too.
    """
    connection_memory_bytes: int = 512 * _MIB
    """Maximum memory for unread responses, incomplete frames and waiting requests of all connections; 0: no limit.

    Above half of it, connections with unread answers are sent no more; above it, those that hold most are aborted.
    """

    def __post_init__(self) -> None:
        for name, (least, most) in RANGES.items():
            self._check(name, least, most)
        if self.metrics_level not in METRICS_LEVELS:
            levels = ", ".join(METRICS_LEVELS)
            raise ValueError(f"metrics_level: '{self.metrics_level}' is out of range; valid: {levels}")
        self._check_listeners()
        self._check_auth()
        self._check_tls()
        for name in (
            "keep_alive_interval_s",
            "handshake_timeout_s",
            "close_timeout_s",
            "scrub_interval_s",
            "auth_refresh_check_s",
        ):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name}: {value} is out of range; valid: above 0")
        try:
            parse_issuers(self.oidc_issuer)
        except ValueError as error:
            raise ValueError(f"oidc_issuer: {error}") from None
        if not self.oidc_role_claim.strip():
            raise ValueError("oidc_role_claim: is empty; valid: the name of a claim, such as sub")

    def check_together(self, *, given_by_others: bool = False) -> None:
        """Raise :class:`ValueError` naming a setting that others need, or that needs others.

        ``given_by_others``: the method ``token`` may be switched on elsewhere, and the authorities of certificates be
        given, as for a BrokerCluster whose pods the operator makes.
        """
        methods = self.auth_methods()
        keys = [name for name in ("token_secret_key", "token_public_key") if comma_separated(getattr(self, name))]
        if "token" in methods and not keys:
            raise ValueError(
                "auth: token needs a key that tokens are verified with; set token_secret_key or token_public_key"
            )
        needing = [*keys, *(["token_audience"] if self.token_audience else [])]
        if needing and "token" not in methods and not given_by_others:
            raise ValueError(f"{needing[0]}: needs the method token, which auth does not name; valid: auth=token")
        for setting in ("superusers", "monitors", "backups", "proxies", "anonymous_role"):
            if getattr(self, setting) and not methods and not given_by_others:
                raise ValueError(f"{setting}: needs authentication, which auth does not switch on; valid: auth=token")
        issuing = "oidc_issuer" if self.oidc_issuer else "oidc_kubernetes" if self.oidc_kubernetes else ""
        if "oidc" in methods and not issuing:
            raise ValueError("auth: oidc needs issuers of tokens; set oidc_issuer or oidc_kubernetes")
        if "tls" in methods and not self.tls_client_ca and not given_by_others:
            raise ValueError("auth: tls needs the authorities of clients' certificates; set tls_client_ca")
        if "basic" in methods and not self.basic_file:
            raise ValueError("auth: basic needs a file of users; set basic_file")
        for setting, method in ((issuing, "oidc"), ("basic_file" if self.basic_file else "", "basic")):
            if setting and method not in methods:
                raise ValueError(
                    f"{setting}: needs the method {method}, which auth does not name; valid: auth={method}"
                )
        self._check_audiences()
        if self.oidc_ca and not self.oidc_issuer:
            raise ValueError("oidc_ca: needs oidc_issuer, whose servers it is for; valid: both or none")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], **given: Any) -> BrokerConfig:
        """Return the settings ``given``, and of the others those named ``HELIOGRAPH_<SETTING>`` in ``environment``.

        ``HELIOGRAPH_LEDGER_MAX_ENTRIES=1000`` sets ``ledger_max_entries``. Raises :class:`ValueError` naming the
        setting for a value that is out of range or of another type, or that another setting needs.
        """
        settings: dict[str, Any] = {}
        for name, default in zip(cls.__struct_fields__, cls.__struct_defaults__, strict=True):
            value = environment.get(ENVIRONMENT_PREFIX + name.upper())
            if value is not None:
                # A variable, and a path too, may hold any bytes; converting others would fail without a name.
                if not (isinstance(default, str) or value.isascii()):
                    raise ValueError(f"{name}: {quoted(value)} is neither a number nor a boolean")
                settings[name] = value
        config = msgspec.convert(settings | given, cls, strict=False)
        config.check_together()
        return config

    def _check_audiences(self) -> None:
        issuers = [*parse_issuers(self.oidc_issuer), *([KUBERNETES] if self.oidc_kubernetes else [])]
        try:
            have = parse_audiences(self.oidc_audience_by_issuer, issuers)
        except ValueError as error:
            raise ValueError(f"oidc_audience_by_issuer: {error}") from None
        without = [each for each in issuers if each not in have]
        if without and not comma_separated(self.oidc_audience):
            issuing = "oidc_kubernetes" if without == [KUBERNETES] else "oidc_issuer"
            raise ValueError(f"oidc_audience: is empty, and {issuing} needs it; valid: the audiences of this broker")

    def _check_listeners(self) -> None:
        try:
            names = list(parse_advertised_listeners(self.advertised_listeners))
        except ValueError as error:
            raise ValueError(f"advertised_listeners: {error}") from None
        try:
            bound = parse_bind_addresses(self.bind_addresses)
        except ValueError as error:
            raise ValueError(f"bind_addresses: {error}") from None
        named = {
            "internal_listener_name": [self.internal_listener_name],
            "bind_addresses": [each.name for each in bound],
        }
        for setting, given in named.items():
            for name in filter(None, given):
                if name not in names:
                    valid = ", ".join(names) or "advertised_listeners with this name"
                    raise ValueError(f"{setting}: {quoted(name)} is none of the advertised_listeners; valid: {valid}")

    def auth_methods(self) -> tuple[str, ...]:
        """Return the methods by which clients authenticate; none: authentication is off."""
        return tuple(comma_separated(self.auth))

    def exposure(self) -> str:
        """Return the address at which other machines may do everything without authentication; empty: none."""
        if self.auth_methods():
            return ""
        bound = [self.bind, *(each.host for each in parse_bind_addresses(self.bind_addresses))]
        return next((host or "*" for host in bound if not is_loopback(host)), "")

    def _check_auth(self) -> None:
        methods = self.auth_methods()
        for method in methods:
            if method not in AUTH_METHODS:
                raise ValueError(f"auth: {quoted(method)} is no method; valid: {', '.join(AUTH_METHODS)}")
        if not self.token_role_claim.strip():
            raise ValueError("token_role_claim: is empty; valid: the name of a claim, such as sub")

    def _check_tls(self) -> None:
        needs = {
            "tls_cert": "tls_key",
            "tls_key": "tls_cert",
            "tls_client_ca": "tls_cert",
            "tls_require_client_certificate": "tls_client_ca",
            "tls_only": "tls_cert",
        }
        for name, needed in needs.items():
            if getattr(self, name) and not getattr(self, needed):
                raise ValueError(f"{name}: it needs {needed}, which is not set; valid: {name} with {needed}")
        for address in parse_bind_addresses(self.bind_addresses):
            if address.encrypted and not self.tls_cert:
                raise ValueError(f"bind_addresses: {ENCRYPTED} needs tls_cert, which is not set; valid: {PLAIN}")
            if self.tls_only and not address.encrypted:
                raise ValueError(f"bind_addresses: {PLAIN} is not encrypted, and tls_only is set; valid: {ENCRYPTED}")

    def _check(self, name: str, least: int, most: int | None) -> None:
        value = getattr(self, name)
        if value < least or (most is not None and value > most):
            valid = f"{least} or more" if most is None else f"{least} to {most}"
            raise ValueError(f"{name}: {value} is out of range; valid: {valid}")
