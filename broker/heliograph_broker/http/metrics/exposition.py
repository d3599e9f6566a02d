"""The two text formats of metrics: Prometheus 0.0.4 and OpenMetrics 1.0, and which one a request asks for."""

from __future__ import annotations

from typing import NamedTuple

from heliograph_broker.storage.commit.group import Histogram

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

Value = int | float
#: Suffix of the family's name, labels as :func:`labels` returns them, value.
Sample = tuple[str, str, Value]


class Block(NamedTuple):
    """A family and its few samples. ``kind`` is the one Pulsar gives it; an empty ``help`` writes none, as Pulsar."""

    name: str
    kind: str
    samples: list[Sample]
    help: str = ""


def escape(value: str) -> str:
    """Return a label's value as both formats quote it."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def labels(**pairs: str) -> str:
    """Return labels in braces."""
    return "{" + ",".join(f'{name}="{escape(value)}"' for name, value in pairs.items()) + "}"


def _weights(header: str) -> dict[str, float]:
    """Return the q-values of an Accept or Accept-Encoding header by name in small letters."""
    weights: dict[str, float] = {}
    for part in header.split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        weight = 1.0
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip().lower() == "q":
                try:
                    weight = float(value)
                except ValueError:
                    weight = 0.0
        weights[name.lower()] = max(weight, weights.get(name.lower(), 0.0))
    return weights


def prefers_openmetrics(accept: str) -> bool:
    """Whether an Accept header prefers OpenMetrics to the Prometheus text, which is the default."""
    weights = _weights(accept)
    openmetrics = weights.get("application/openmetrics-text", 0.0)
    return openmetrics > 0 and openmetrics >= weights.get("text/plain", 0.0)


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header allows gzip."""
    weights = _weights(accept_encoding)
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def header(name: str, kind: str, openmetrics: bool, text: str = "") -> str:
    """Return the comment lines of a family.

    Pulsar calls its totals gauges; OpenMetrics, which Pulsar does not write, knows them as what they are: ``kind``
    is ``total`` for them. The samples have the same names in both formats.
    """
    if kind == "total":
        kind = "counter" if openmetrics else "gauge"
    family = name.removesuffix("_total") if openmetrics and kind == "counter" else name
    return (f"# HELP {family} {text}\n" if text else "") + f"# TYPE {family} {kind}\n"


def _number(value: Value) -> str:
    return str(value) if value == value else "NaN"


def write_block(block: Block, openmetrics: bool) -> str:
    """Return a family as text."""
    lines = [header(block.name, block.kind, openmetrics, block.help)]
    lines += [f"{block.name}{suffix}{labelled} {_number(value)}\n" for suffix, labelled, value in block.samples]
    return "".join(lines)


def histogram_samples(histogram: Histogram, cluster: str = "") -> list[Sample]:
    """Return the cumulative buckets, the count and the sum of a histogram, its bounds ascending."""
    own = f'cluster="{escape(cluster)}",' if cluster else ""
    samples: list[Sample] = []
    reached = 0
    for bound, count in zip([*map(float, histogram.bounds), float("inf")], histogram.buckets, strict=True):
        reached += count
        named = "+Inf" if bound == float("inf") else repr(bound)
        samples.append(("_bucket", f'{{{own}le="{named}"}}', float(reached)))
    bare = f"{{{own[:-1]}}}" if own else ""
    return [*samples, ("_count", bare, float(histogram.count)), ("_sum", bare, histogram.total)]
