"""Settings of Pulsar that can be changed at run time: /admin/v2/brokers/configuration.

Those of :mod:`~heliograph_broker.messaging.broker.dynamic_policies` hold at once; the others are kept and shown.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote_plus

import msgspec
from aiohttp import web
from heliograph_api.broker_config import BrokerConfig
from heliograph_api.tokens.key_sources import holds_key, source_name, split_sources

from heliograph_broker.http.base.context import BROKER, CONFIG, accepted, as_json
from heliograph_broker.http.base.operations import operation
from heliograph_broker.http.base.warning_header import warn
from heliograph_broker.messaging.base.errors import PreconditionFailed
from heliograph_broker.messaging.broker.dynamic_policies import EFFECTIVE
from heliograph_broker.security.authorization.needs import Need

from .dynamic_names import DYNAMIC

_PATH: Final = "/admin/v2/brokers/configuration"
_MAX_CHARACTERS: Final = 10_000


@operation("List the settings that can be changed at run time.", answers={200: list[str]}, needs=Need.SUPERUSER)
async def list_names(request: web.Request) -> web.Response:
    return as_json(sorted(DYNAMIC))


@operation("Get the values that were set at run time.", answers={200: dict[str, str]}, needs=Need.SUPERUSER)
async def get_values(request: web.Request) -> web.Response:
    return as_json(request.app[BROKER].policies.settings.dynamic)


@operation(
    "Get all settings of the broker, as text, by its own names and by Pulsar's.",
    answers={200: dict[str, str]},
    needs=Need.SUPERUSER,
)
async def get_running(request: web.Request) -> web.Response:
    config = request.app[CONFIG]
    settings = (
        _without_keys(msgspec.to_builtins(config))
        | pulsars_settings(config)
        | request.app[BROKER].policies.settings.dynamic
    )
    return as_json({name: _as_text(value) for name, value in settings.items()})


def _without_keys(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings without the keys that they hold themselves: who has one can make a token for anybody."""
    shown = {}
    for name in ("token_secret_key", "token_public_key"):
        sources = split_sources(settings[name])
        shown[name] = ",".join(source_name(each) if holds_key(each) else each for each in sources)
    return settings | shown


def pulsars_settings(config: BrokerConfig) -> dict[str, Any]:
    """Return the settings that Pulsar has too, by its names and in its units."""
    return {
        "acknowledgmentAtBatchIndexLevelEnabled": config.batch_index_ack,
        "advertisedAddress": config.advertised_host,
        "advertisedListeners": config.advertised_listeners,
        "allowAutoSubscriptionCreation": config.allow_auto_subscription_creation,
        "allowAutoTopicCreation": config.allow_auto_topic_creation,
        "allowAutoTopicCreationType": "partitioned" if config.default_partitions else "non-partitioned",
        "bindAddress": config.bind,
        "bindAddresses": config.bind_addresses,
        "brokerMaxConnections": config.max_connections,
        "brokerServicePort": config.broker_port,
        "clusterName": config.cluster_name,
        "defaultNumPartitions": config.default_partitions or 1,
        "internalListenerName": config.internal_listener_name,
        "keepAliveIntervalSeconds": int(config.keep_alive_interval_s),
        "managedLedgerMaxEntriesPerLedger": config.ledger_max_entries,
        "managedLedgerMaxLedgerRolloverTimeMinutes": config.ledger_max_age_ms // 60_000,
        "managedLedgerMaxSizePerLedgerMbytes": config.ledger_max_bytes // (1024 * 1024),
        "maxMessageSize": config.max_message_size,
        "maxUnackedMessagesPerConsumer": config.max_unacked_per_consumer,
        "maxUnackedMessagesPerSubscription": config.max_unacked_per_subscription,
        "webServicePort": config.http_port,
    }


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _value(request: web.Request) -> str:
    """Return the value of the path. Pulsar's clients encode it as forms do: a plus is a blank, %2B a plus."""
    path = request.raw_path.partition("?")[0]
    return unquote_plus(path.partition("/configuration/")[2].partition("/")[2])


@operation("Set a setting at run time; one without effect here is kept and shown.", needs=Need.SUPERUSER)
async def set_value(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name, value = request.match_info["setting"], _value(request)
    if name not in DYNAMIC:
        raise PreconditionFailed("Can't update non-dynamic configuration")
    if len(value) > _MAX_CHARACTERS:
        raise PreconditionFailed(f"{name} should have at most {_MAX_CHARACTERS} characters, not {len(value)}")
    broker.policies.set_dynamic(name, value)
    if name not in EFFECTIVE:
        warn(request, f"{name} is kept and shown, but has no effect here")
    return await accepted(broker)


@operation("Revert a setting that was set at run time.", needs=Need.SUPERUSER)
async def remove_value(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = request.match_info["setting"]
    if name not in DYNAMIC:
        raise PreconditionFailed("Can't delete non-dynamic configuration")
    broker.policies.set_dynamic(name, None)
    return await accepted(broker)


def routes() -> list[web.RouteDef]:
    return [
        web.get(_PATH, list_names),
        web.get(f"{_PATH}/values", get_values),
        web.get(f"{_PATH}/runtime", get_running),
        # A value may have slashes, encoded or not.
        web.post(f"{_PATH}/{{setting}}/{{value:.+}}", set_value),
        web.delete(f"{_PATH}/{{setting}}", remove_value),
    ]
