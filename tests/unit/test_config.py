"""The broker's settings: defaults as documented, and nothing out of range."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_api.broker_config import BrokerConfig


def test_defaults_are_pulsars_where_pulsar_has_them() -> None:
    config = BrokerConfig()
    assert (config.broker_port, config.http_port) == (6650, 8080)
    assert config.max_message_size == 5 * 1024 * 1024
    assert config.keep_alive_interval_s == 30
    assert (config.max_unacked_per_consumer, config.max_unacked_per_subscription) == (50_000, 200_000)
    assert (config.ledger_max_entries, config.ledger_max_age_ms) == (50_000, 240 * 60_000)


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("broker_port", 65536, "broker_port: 65536 is out of range; valid: 0 to 65535"),
        ("http_port", -1, "http_port: -1 is out of range; valid: 0 to 65535"),
        ("max_message_size", 0, "max_message_size: 0 is out of range; valid: 1 or more"),
        ("ledger_max_entries", 0, "ledger_max_entries: 0 is out of range; valid: 1 or more"),
        ("default_partitions", -1, "default_partitions: -1 is out of range; valid: 0 or more"),
        ("keep_alive_interval_s", 0.0, "keep_alive_interval_s: 0.0 is out of range; valid: above 0"),
        ("metrics_level", "all", "metrics_level: 'all' is out of range; valid: topic, namespace, broker"),
        ("keep_alive_interval_s", float("nan"), "keep_alive_interval_s: nan is out of range"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(setting: str, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match="is out of range") as caught:
        BrokerConfig(**{setting: value})
    assert words in str(caught.value)


def test_settings_from_the_environment() -> None:
    environment = {"HELIOGRAPH_LEDGER_MAX_ENTRIES": "10", "HELIOGRAPH_HTTP_PORT": "1", "LEDGER_MAX_AGE_MS": "3"}
    config = BrokerConfig.from_environment(environment, http_port=2)
    assert (config.ledger_max_entries, config.http_port) == (10, 2)
    assert config.ledger_max_age_ms == BrokerConfig().ledger_max_age_ms
