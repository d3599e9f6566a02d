"""The broker's settings from the environment: settings in their ranges, or a refusal that names the setting."""

from __future__ import annotations

from collections.abc import Iterator

from heliograph_api.broker_config import ENVIRONMENT_PREFIX, METRICS_LEVELS, RANGES, BrokerConfig

from tests.fuzz.target import Finding, Source

#: New settings are added at the end, so that kept inputs keep their meaning as long as possible.
_FIELDS = BrokerConfig.__struct_fields__


def run(data: bytes) -> None:
    source = Source(data)
    environment = {}
    while not source.ended:
        name = source.choose(_FIELDS)
        # An environment has no zeros in it.
        value = source.take(source.number()).replace(b"\0", b"0").decode("utf-8", "surrogateescape")
        environment[ENVIRONMENT_PREFIX + name.upper()] = value
    try:
        config = BrokerConfig.from_environment(environment)
    except ValueError as error:
        named = [name for name in _FIELDS if name in str(error)]
        if not named or not any(ENVIRONMENT_PREFIX + name.upper() in environment for name in named):
            raise Finding(f"of {environment} is refused: {error}") from error
        return
    for name, (least, most) in RANGES.items():
        value_of = getattr(config, name)
        if value_of < least or (most is not None and value_of > most):
            raise Finding(f"{name} is {value_of}")
    if config.metrics_level not in METRICS_LEVELS or not config.keep_alive_interval_s > 0:
        raise Finding(f"taken: {config}")


def seeds() -> Iterator[bytes]:
    values = {int: ["0", "5", "-1", "65536", "1e3"], float: ["1.5", "nan", "inf", "0"], bool: ["true", "0", "maybe"]}
    config = BrokerConfig()
    for number, name in enumerate(_FIELDS):
        kind = type(getattr(config, name))
        for value in values.get(kind, ["x", "a:pulsar://b:1,c:pulsar://d:2", "topic"]):
            yield bytes([number, len(value)]) + value.encode()
