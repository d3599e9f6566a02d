"""The broker's settings."""

from __future__ import annotations

import msgspec


class BrokerConfig(msgspec.Struct, frozen=True):
    cluster_name: str = "standalone"
    data_dir: str = "heliograph-data"
    bind: str = "127.0.0.1"
    broker_port: int = 6650
    http_port: int = 8080
    advertised_host: str = ""
    max_message_size: int = 5 * 1024 * 1024
    keep_alive_interval_s: float = 30.0
    tail_cache_bytes: int = 32 * 1024 * 1024
    max_unacked_per_consumer: int = 50_000
    max_unacked_per_subscription: int = 200_000
    ledger_max_entries: int = 50_000
    ledger_max_age_ms: int = 240 * 60 * 1000
    allow_auto_topic_creation: bool = True
    default_partitions: int = 0
    allow_auto_subscription_creation: bool = True
    segment_bytes: int = 128 * 1024 * 1024
    disk_reserve_bytes: int = 64 * 1024 * 1024
