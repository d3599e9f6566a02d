"""``docs/from-pulsar-spark.md`` says of each option of other connectors what the parser of the options does with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from heliograph_spark.plan.errors import OptionError
from heliograph_spark.plan.options import read_options, write_options
from heliograph_spark.plan.other_connectors import INSTEAD

PAGE = Path(__file__).parents[2] / "docs" / "from-pulsar-spark.md"
_ROW = re.compile(r"\| `([^`]+)` \| (?:`([^`]+)`)? \| (\w+) \| ([a-z ]+) \| (.*) \|")
ROWS: list[tuple[str, str, str, str, str]] = [
    (name, example or "", query, here, text.strip())
    for name, example, query, here, text in (
        found.groups() for found in map(_ROW.fullmatch, PAGE.read_text().splitlines()) if found is not None
    )
]
#: The options that pulsar-spark's README names in its table and in its examples.
README = (
    *(
        "service.url",
        "admin.url",
        "maxBytesPerTrigger",
        "predefinedSubscription",
        "subscriptionPrefix",
        "topic",
        "topics",
    ),
    *("topicsPattern", "pollTimeoutMs", "waitingForNonExistedTopic", "startingOffsets", "endingOffsets"),
    *("failOnDataLoss", "allowDifferentTopicSchemas", "pulsar.client.authPluginClassName", "pulsar.client.authParams"),
    *("pulsar.admin.authPluginClassName", "pulsar.admin.authParams", "pulsar.admin.tlsAllowInsecureConnection"),
    *("pulsar.client.tlsTrustCertsFilePath", "pulsar.client.tlsAllowInsecureConnection"),
    *(
        "pulsar.client.tlsHostnameVerificationEnable",
        "pulsar.reader.subscriptionName",
        "pulsar.producer.blockIfQueueFull",
    ),
)
_URLS = {"service.url": "pulsar://localhost:6650", "admin.url": "http://localhost:8080"}


def _parse(name: str, example: str, query: str) -> None:
    """Have the options parsed that a query of this kind has, with this one among them."""
    chosen = {} if name in ("topic", "topics", "topicsPattern") else {"topic": "orders"}
    plugin = {"pulsar.client.authPluginClassName": "AuthenticationToken"} if name.endswith(".authParams") else {}
    options = {**_URLS, **chosen, **plugin, name: example or "x"}
    if query in ("read", "both", "stream"):
        read_options(options, streaming=True)
    if query in ("read", "both", "batch"):
        read_options(options, streaming=False)
    if query in ("write", "both"):
        write_options(options)


@pytest.mark.parametrize(("name", "example", "query", "here", "text"), ROWS)
def test_an_option_is_understood_as_the_table_says(
    name: str, example: str, query: str, here: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert query in ("read", "batch", "stream", "write", "both")
    if here == "refused":
        for kind in ("read", "write") if query == "both" else (query,):
            with pytest.raises(OptionError) as refused:
                _parse(name, example, kind)
            assert str(refused.value) == f"option {name!r} is not known here: {text}"
        return
    assert example, "the row has no example"
    _parse(name, example, query)
    if here == "without effect":
        assert set(caplog.messages) == {f"option {name} has no effect: {text}"}
    else:
        assert here in ("as it is", "another meaning")
        assert here == "as it is" or text, "the row does not say which meaning"
        assert not caplog.messages


def test_the_table_has_every_option_of_the_readme_and_every_one_that_is_refused_with_a_reason() -> None:
    listed = {name for name, *_ in ROWS}
    assert not set(README) - listed
    assert not INSTEAD.keys() - listed
    assert {name for name, _, _, here, _ in ROWS if here == "refused"} == INSTEAD.keys()


def test_what_takes_the_place_of_an_option_is_an_option_here() -> None:
    known = {name for name, _, _, here, _ in ROWS if here in ("as it is", "another meaning")}
    known |= {"maxEntriesPerSplit", "badRecords"}
    last_parts = known | {name.rpartition(".")[2] for name in known}
    for name, text in INSTEAD.items():
        named = set(re.findall(r"(?<![\w.])(?:pulsar\.\w+\.)?[a-z]+[A-Z]\w+|service\.url|admin\.url", text))
        assert not named - last_parts, name


@pytest.mark.parametrize("name", ["kafka.security.protocol", "pulsar.consumer.ackTimeoutMillis"])
def test_other_settings_of_a_client_are_refused_with_where_they_are(name: str) -> None:
    with pytest.raises(OptionError, match=re.escape(f"option {name!r} is not known here: settings of the")) as refused:
        _parse(name, "1", "read")
    text = str(refused.value).partition("here: ")[2]
    assert f"`{text}`" in PAGE.read_text()
