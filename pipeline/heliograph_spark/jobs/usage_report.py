"""The report of usage as one HTML page that needs nothing else: tables, and plots as PNG within it."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from heliograph_api.values.readable import readable_duration, readable_size
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from heliograph_spark.jobs.plan.broker_stats import Lag
from heliograph_spark.jobs.plan.forecast import Forecast
from heliograph_spark.jobs.plan.usage_statistics import Counted, GroupUsage, PartitionUsage, TopicUsage
from heliograph_spark.plan.timestamps import write_moment

#: More than so many bars or lines nobody reads.
_BARS = 15
_SERIES = 6
_ROWS = 500
_INK, _WARM, _PALE = "#1f4e79", "#c8553d", "#9db8d2"


@dataclass(frozen=True, slots=True)
class Report:
    """The contents of the page.

    ``keys`` are those of the biggest topics, each with messages and bytes, ``gone`` the topics that were deleted while
    they were counted; the rest is by partition.
    """

    moment_ms: int
    clock: str
    tenants: Sequence[GroupUsage]
    namespaces: Sequence[GroupUsage]
    topics: Sequence[TopicUsage]
    partitions: Sequence[PartitionUsage]
    lags: Sequence[Lag]
    keys: Mapping[str, Sequence[tuple[str, int, int]]]
    forecasts: Mapping[str, Forecast]
    counted: Mapping[str, Counted]
    gone: Sequence[str] = ()


def html(report: Report) -> str:
    """Return the whole page."""
    total = sum(each.bytes for each in report.topics)
    messages = sum(each.messages for each in report.topics)
    images = "".join(
        f'<figure><img id="{name}" alt="{name}" src="data:image/png;base64,{base64.b64encode(png).decode("ascii")}">'
        "</figure>"
        for name, png in plots(report).items()
    )
    parts = [
        f"<h1>Usage</h1><p>As of {write_moment(report.moment_ms)}, by {escape(report.clock)} time:"
        f" {messages:,} messages, {size(total)} bytes, in {len(report.topics)} topics.</p>",
        _gone(report.gone),
        images,
        _method(report),
        _groups("Tenants", report.tenants),
        _groups("Namespaces", report.namespaces),
        _topics(report.topics),
        _partitions(report.partitions),
        _lags(report.lags),
        *(_keys(topic, keys) for topic, keys in report.keys.items()),
    ]
    head = f'<head><meta charset="utf-8"><title>Usage</title><style>{_STYLE}</style></head>'
    return f'<!DOCTYPE html><html lang="en">{head}<body>{"".join(parts)}</body></html>\n'


def _gone(topics: Sequence[str]) -> str:
    return f"<p>Deleted while they were counted, and left out: {escape(', '.join(topics))}.</p>" if topics else ""


_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;margin:1rem 0;font-size:13px}td,th{padding:.2rem .6rem;text-align:right;"
    "border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}figure{margin:1rem 0}"
    "img{max-width:100%}"
    ".full{color:#c8553d;font-weight:bold}"
)


def plots(report: Report) -> dict[str, bytes]:
    """Return the page's plots as PNG, by name; one without anything to show is left out."""
    found = {}
    if any(each.bytes for each in report.topics):
        found["topics"] = _png(_biggest_topics(report.topics))
    grown = [name for name, each in report.counted.items() if any(each.series)]
    if grown:
        urgent = {each.partition: _urgency(each) for each in report.partitions}
        found["growth"] = _png(
            growth_of(report, sorted(grown, key=lambda each: urgent.get(each, (1e300, 0.0)))[:_SERIES])
        )
    if report.keys:
        found["keys"] = _png(_key_shares(report))
    return found


def _urgency(each: PartitionUsage) -> tuple[float, float]:
    return 1e299 if each.seconds_to_quota is None else each.seconds_to_quota, -float(each.bytes)


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # A name may have any characters; those that the font lacks are boxes here, and themselves in the tables.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(buffer, format="png", dpi=80)
    return buffer.getvalue()


def _short(name: str, length: int = 46) -> str:
    # A dollar sign would begin a formula.
    text = name.split("://", 1)[-1].replace("$", r"\$")
    return text if len(text) <= length else "…" + text[1 - length :]


def _biggest_topics(topics: Sequence[TopicUsage]) -> Figure:
    shown = sorted(topics, key=lambda each: each.bytes)[-_BARS:]
    figure = Figure(figsize=(10, 1.1 + 0.4 * len(shown)), layout="constrained")
    axes = figure.subplots()
    at = range(len(shown))
    axes.barh([each + 0.2 for each in at], [each.bytes for each in shown], 0.4, color=_INK, label="messages")
    axes.barh([each - 0.2 for each in at], [each.backlog_bytes for each in shown], 0.4, color=_WARM, label="backlog")
    axes.set_yticks(list(at), [_short(each.topic) for each in shown])
    axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
    axes.set_title("Bytes by topic")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def growth_of(report: Report, partitions: Sequence[str]) -> Figure:
    """Return the plot of what came to each of these partitions, and what is forecast."""
    figure = Figure(figsize=(10, 2.6 * len(partitions)), layout="constrained")
    for axes, name in zip(figure.subplots(len(partitions), squeeze=False)[:, 0], partitions, strict=True):
        counted = report.counted[name]
        unit, unit_s = _unit(counted.interval_s * len(counted.series))
        step = counted.interval_s / unit_s
        at = [number * step for number in range(len(counted.series))]
        axes.step(at, counted.series, where="post", color=_INK, linewidth=1, label="published")
        if (forecast := report.forecasts.get(name)) is not None:
            begin = len(counted.series) - forecast.held_back
            held = [(begin + number) * step for number in range(forecast.held_back)]
            error = "" if forecast.error is None else f" ({forecast.error:.1%} off in sum)"
            axes.plot(
                held,
                forecast.predicted,
                color=_WARM,
                label=f"forecast of the last fifth{error}",
            )
            shown = forecast.future[: max(1, len(at) // 3)]
            ahead = [(len(at) + number) * step for number in range(len(shown))]
            axes.plot(ahead, shown, color=_PALE, label=f"forecast of what comes ({forecast.model})")
        axes.set_title(_short(name, 90), fontsize=10)
        axes.yaxis.set_major_formatter(EngFormatter(unit="B"))
        axes.set_ylabel(f"bytes in {duration(counted.interval_s)}")
        axes.set_xlabel(f"{unit} since its first message")
        axes.margins(y=0.3)
        axes.set_ylim(bottom=0)
        axes.legend(loc="upper left", fontsize=8, ncols=3)
    return figure


def _unit(span_s: float) -> tuple[str, int]:
    units = (("days", 86_400), ("hours", 3600), ("minutes", 60))
    return next(((name, each) for name, each in units if span_s >= 3 * each), ("seconds", 1))


def _key_shares(report: Report) -> Figure:
    topics = list(report.keys)[:_SERIES]
    totals = {each.topic: each.messages for each in report.topics}
    figure = Figure(figsize=(10, 2.4 * len(topics)), layout="constrained")
    for axes, topic in zip(figure.subplots(len(topics), squeeze=False)[:, 0], topics, strict=True):
        keys = report.keys[topic]
        axes.bar(range(len(keys)), [100 * each[1] / totals[topic] for each in keys], color=_INK)
        axes.set_xticks(range(len(keys)), [_short(each[0], 12) for each in keys])
        axes.set_ylabel("% of messages")
        axes.set_title(f"Biggest keys of {_short(topic, 70)}", fontsize=10)
    return figure


def _method(report: Report) -> str:
    errors = sorted(each.error for each in report.forecasts.values() if each.error is not None)
    accuracy = f" Half of these forecasts are off by at most {errors[(len(errors) - 1) // 2]:.1%}." if errors else ""
    return (
        "<p>Time to the quota: the bytes that come are forecast (by a level, a line, or the shape of a day or a week,"
        " whichever was best on a part of the series that it had not seen), and the slowest subscription continues at"
        " its current rate. The forecast error is that of the sum over the last fifth of the series, which the forecast"
        f" had not seen.{accuracy}</p>"
    )


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return f"<h2>{escape(title)}</h2><p>none</p>"
    lines = ["".join(f"<td>{cell}</td>" for cell in row) for row in rows[:_ROWS]]
    more = f"<p>and {len(rows) - _ROWS} more, in the tables beside this page</p>" if len(rows) > _ROWS else ""
    header = "".join(f"<th>{each}</th>" for each in head)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<h2>{escape(title)}</h2><table><tr>{header}</tr>{body}</table>{more}"


def _groups(title: str, groups: Sequence[GroupUsage]) -> str:
    head = (
        "name",
        "topics",
        "messages",
        "bytes",
        "stored",
        "growth an hour",
        "biggest topic",
        "backlog",
        "quota used",
        "time to quota",
    )
    rows = [
        (
            escape(each.name),
            f"{each.topics:,}",
            f"{each.messages:,}",
            size(each.bytes),
            size(each.stored_bytes),
            size(each.bytes_per_hour),
            share(each.topic_skew),
            size(each.backlog_bytes),
            share(each.quota_use),
            _until(each.seconds_to_quota),
        )
        for each in groups
    ]
    return _table(title, head, rows)


def _topics(topics: Sequence[TopicUsage]) -> str:
    head = (
        *(
            "topic",
            "partitions",
            "messages",
            "bytes",
            "stored",
            "growth an hour",
            "keys",
            "biggest key",
            "share of biggest key",
        ),
        *("biggest partition", "backlog", "quota used", "time to quota", "forecast", "forecast error", "archived"),
    )
    rows = [
        (
            escape(each.topic),
            f"{each.partitions:,}",
            f"{each.messages:,}",
            size(each.bytes),
            size(each.stored_bytes),
            size(each.bytes_per_hour),
            f"{each.keys:,}",
            escape(each.biggest_key or "–"),
            share(each.key_skew),
            share(each.partition_skew),
            size(each.backlog_bytes),
            share(each.quota_use),
            _until(each.seconds_to_quota),
            escape(each.forecast_model or "too short"),
            share(each.forecast_error),
            "–" if each.archived_messages is None else f"{each.archived_messages:,}",
        )
        for each in topics
    ]
    return _table("Topics", head, rows)


def _partitions(partitions: Sequence[PartitionUsage]) -> str:
    head = (
        "partition",
        "messages",
        "bytes",
        "growth an hour",
        "backlog",
        "quota",
        "used",
        "time to quota",
        "forecast",
        "forecast error",
        "intervals",
    )
    rows = [
        (
            escape(each.partition),
            f"{each.messages:,}",
            size(each.bytes),
            size(each.bytes_per_hour),
            size(each.backlog_bytes),
            size(each.quota_bytes),
            share(each.quota_use),
            _until(each.seconds_to_quota),
            escape(each.forecast_model or "too short"),
            share(each.forecast_error),
            "–" if each.interval_s is None else f"{each.intervals} of {duration(each.interval_s)}",
        )
        for each in partitions
    ]
    return _table("Partitions", head, rows)


def _lags(lags: Sequence[Lag]) -> str:
    head = ("subscription", "partition", "messages behind", "bytes behind", "consumers")
    behind = sorted(lags, key=lambda each: (-each.bytes, -each.messages, each.partition, each.subscription))
    rows = [
        (
            escape(each.subscription),
            escape(each.partition),
            f"{each.messages:,}",
            size(each.bytes),
            str(each.consumers),
        )
        for each in behind
    ]
    return _table("Subscriptions, those furthest behind first", head, rows)


def _keys(topic: str, keys: Sequence[tuple[str, int, int]]) -> str:
    rows = [(escape(key), f"{messages:,}", size(total)) for key, messages, total in keys]
    return _table(f"Biggest keys of {topic}", ("key", "messages", "bytes"), rows)


def size(value: float | None) -> str:
    """Return a number of bytes, if it is known."""
    return "–" if value is None else readable_size(int(value))


def share(value: float | None) -> str:
    """Return a share of 1 in percent."""
    return "–" if value is None else f"{value:.1%}"


def duration(seconds: float) -> str:
    """Return a time for people to read."""
    return readable_duration(int(seconds * 1000))


def _until(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return '<span class="full">reached</span>' if seconds == 0 else escape(duration(seconds))
