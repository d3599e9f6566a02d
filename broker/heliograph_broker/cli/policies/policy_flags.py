"""The flags of policy commands, as in ``pulsar-admin``, and the bodies that they send to Pulsar's REST API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from heliograph_api.policies.policies import (
    BACKLOG_QUOTA_POLICIES,
    INACTIVE_TOPIC_MODES,
    SETTABLE_COMPATIBILITIES,
    SUBSCRIPTION_TYPES,
)

from heliograph_broker.cli.base.shared_options import usage_error
from heliograph_broker.cli.base.values import (
    comma_separated,
    one_of,
    size_bytes,
    size_megabytes,
    time_milliseconds,
    time_minutes,
    time_seconds,
)

Values = Mapping[str, Any]
#: Reads the text of an option (its name is for errors).
Reader = Callable[[str, str], Any]

QUOTA_TYPES = ("destination_storage", "message_age")


class Flag(NamedTuple):
    """An option of a set command. ``read`` None makes it a switch, whose value is whether it was given."""

    key: str
    names: tuple[str, ...]
    help: str
    read: Reader | None
    metavar: str = "TEXT"
    #: None: the option must be given.
    default: str | None = None
    #: The query parameter it is sent as, rather than in the body.
    query: str = ""
    #: Whether remove- takes it too.
    on_remove: bool = False


class Policy(NamedTuple):
    """One policy at one level. ``path`` is appended to the path of the namespace or topic."""

    name: str
    #: The object of "set …".
    about: str
    path: str
    flags: tuple[Flag, ...]
    #: Makes the body from the values of the flags; None: everything is in the query.
    body: Callable[[Values], Any] | None
    #: Flags as somebody would write them.
    example: str
    method: str = "POST"
    #: The name and path of the get command, if pulsar-admin uses the plural there.
    get_name: str = ""
    get_path: str = ""
    removable: bool = True
    #: Makes what get prints from the answer.
    shown: Callable[[Any], Any] = lambda answer: answer


def whole(option: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        usage_error(f"{option} '{text}' is not a number; valid: 0 (no limit), 1, 2, …")
    return int(text)


def _rate(option: str, text: str) -> int:
    return -1 if text == "-1" else size_bytes(option, text)


def choice(*choices: str) -> Reader:
    return lambda option, text: one_of(option, text, choices)


def _types(option: str, text: str) -> list[str]:
    return [one_of(option, part, SUBSCRIPTION_TYPES) for part in comma_separated(text)]


def enabled(values: Values) -> bool:
    if values["enable"] == values["disable"]:
        usage_error("give either --enable or --disable")
    return bool(values["enable"])


def only(key: str) -> Callable[[Values], Any]:
    return lambda values: values[key]


RETENTION = (
    Flag("time", ("--time", "-t"), "Retention time: 10m, 3h, 7d; -1: no limit; 0: keep nothing.", time_minutes, "TIME"),
    Flag("size", ("--size", "-s"), "Retention size: 512M, 10G; -1: no limit; 0: keep nothing.", size_megabytes, "SIZE"),
)
QUOTA_TYPE = Flag(
    "type",
    ("--type", "-t"),
    "Type of the limit: destination_storage (bytes) or message_age (time).",
    choice(*QUOTA_TYPES),
    "TYPE",
    "destination_storage",
    query="backlogQuotaType",
    on_remove=True,
)
QUOTA = (
    Flag("limit", ("--limit", "-l"), "Size limit, for destination_storage: 10M, 2G.", size_bytes, "SIZE", "-1"),
    Flag("limitTime", ("--limitTime", "-lt"), "Age limit, for message_age: 3600 (s), 1h.", time_seconds, "TIME", "-1"),
    Flag(
        "policy",
        ("--policy", "-p"),
        f"Action at the limit: {', '.join(BACKLOG_QUOTA_POLICIES)}.",
        choice(*BACKLOG_QUOTA_POLICIES),
        "POLICY",
    ),
    QUOTA_TYPE,
)
SWITCH = (
    Flag("enable", ("--enable", "-e"), "Enable the policy.", None),
    Flag("disable", ("--disable", "-d"), "Disable the policy.", None),
)
DELAYED = (
    *SWITCH,
    Flag("time", ("--time", "-t"), "Pulsar's tick; delivery here is on time anyway.", time_milliseconds, "TIME", "1s"),
    Flag("maxDelay", ("--maxDelay", "-md"), "Longest delay; 0: no limit.", time_milliseconds, "TIME", "0"),
)
INACTIVE = (
    Flag("enable", ("--enable-delete-while-inactive", "-e"), "Delete inactive topics.", None),
    Flag("disable", ("--disable-delete-while-inactive", "-d"), "Keep inactive topics.", None),
    Flag("after", ("--max-inactive-duration", "-t"), "Time of inactivity: 3600 (s), 5h, 3d.", time_seconds, "TIME"),
    Flag(
        "mode",
        ("--delete-mode", "-m"),
        f"Topics that count as inactive: {', '.join(INACTIVE_TOPIC_MODES)}.",
        choice(*INACTIVE_TOPIC_MODES),
        "MODE",
    ),
)
DISPATCH = (
    Flag("messages", ("--msg-dispatch-rate", "-md"), "Messages per period; -1: no limit.", _rate, "N", "-1"),
    Flag("bytes", ("--byte-dispatch-rate", "-bd"), "Bytes per period: 10M; -1: no limit.", _rate, "SIZE", "-1"),
    Flag("period", ("--dispatch-rate-period", "-dt"), "Length of the period: 1 (s), 1m.", time_seconds, "TIME", "1s"),
    Flag("relative", ("--relative-to-publish-rate", "-rp"), "Not supported; give the rate itself.", None),
)
SUBSCRIBE = (
    Flag(
        "rate",
        ("--subscribe-rate", "-sr"),
        "Subscribe requests of a consumer per period; -1: no limit.",
        _rate,
        "N",
        "-1",
    ),
    Flag("period", ("--subscribe-rate-period", "-st"), "Length of the period: 1 (s), 1m.", time_seconds, "TIME", "30s"),
)
PUBLISH = (
    Flag("messages", ("--msg-publish-rate", "-m"), "Messages per second; -1: no limit.", _rate, "N", "-1"),
    Flag("bytes", ("--byte-publish-rate", "-b"), "Bytes per second: 10M; -1: no limit.", _rate, "SIZE", "-1"),
)
AUTO_TOPIC = (
    *SWITCH,
    Flag(
        "type",
        ("--type", "-t"),
        "Type of created topics: partitioned or non-partitioned topics.",
        choice("partitioned", "non-partitioned"),
        "TYPE",
        "non-partitioned",
    ),
    Flag("partitions", ("--num-partitions", "-n"), "Number of partitions.", whole, "N", "0"),
)
TYPES = (
    Flag(
        "types",
        ("--types", "-t"),
        f"Allowed types, separated by commas: {', '.join(SUBSCRIPTION_TYPES)}.",
        _types,
        "TYPES",
    ),
)
COMPATIBILITY = (
    Flag(
        "compatibility",
        ("--compatibility", "-c"),
        f"Strategy: {', '.join(SETTABLE_COMPATIBILITIES)}.",
        choice(*SETTABLE_COMPATIBILITIES),
        "STRATEGY",
    ),
)


def retention_body(values: Values) -> Any:
    return {"retentionTimeInMinutes": values["time"], "retentionSizeInMB": values["size"]}


def quota_body(values: Values) -> Any:
    size, seconds = values["limit"], values["limitTime"]
    if values["type"] == "destination_storage":
        if size == -1 and seconds != -1:
            usage_error("--limitTime belongs to --type message_age; destination_storage takes --limit SIZE, as in 2G")
    elif size != -1 and seconds == -1:
        usage_error("--limit belongs to --type destination_storage; message_age takes --limitTime TIME, as in 3600")
    return {"limit": size, "limitSize": size, "limitTime": seconds, "policy": values["policy"]}


def delayed_body(values: Values) -> Any:
    active = enabled(values)
    return {"tickTime": values["time"], "active": active, "maxDeliveryDelayInMillis": values["maxDelay"]}


def inactive_body(values: Values) -> Any:
    if values["enable"] == values["disable"]:
        usage_error("give either --enable-delete-while-inactive or --disable-delete-while-inactive")
    return {
        "inactiveTopicDeleteMode": values["mode"],
        "maxInactiveDurationSeconds": values["after"],
        "deleteWhileInactive": values["enable"],
    }


def dispatch_body(values: Values) -> Any:
    return {
        "dispatchThrottlingRateInMsg": values["messages"],
        "dispatchThrottlingRateInByte": values["bytes"],
        "ratePeriodInSecond": values["period"],
        "relativeToPublishRate": values["relative"],
    }


def subscribe_body(values: Values) -> Any:
    return {"subscribeThrottlingRatePerConsumer": values["rate"], "ratePeriodInSecond": values["period"]}


def publish_body(values: Values) -> Any:
    return {"publishThrottlingRateInMsg": values["messages"], "publishThrottlingRateInByte": values["bytes"]}


def auto_topic_body(values: Values) -> Any:
    allow = enabled(values)
    if allow and values["type"] == "partitioned" and values["partitions"] < 1:
        usage_error("--type partitioned needs --num-partitions N, 1 or more")
    body = {"allowAutoTopicCreation": allow, "topicType": values["type"]}
    if values["type"] == "partitioned":
        body["defaultNumPartitions"] = values["partitions"]
    return body
