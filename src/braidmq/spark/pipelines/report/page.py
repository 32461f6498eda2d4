"""Render a report as one HTML page, without scripts and without external resources.

The page follows the reader's light or dark mode and any screen width, and every chart has its
numbers in a table beside it. Topic names and reasons are untrusted, and always escaped.
"""

import html
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

from braidmq.spark.pipelines.report.charts import Bar, as_text, bars, columns

TOP_COUNT: Final = 20
"""Topics in a chart or a table; the others are summed up in one line."""

BUSIEST_COUNT: Final = 10
CELL_WIDTH_MAX: Final = 120
HOURS_A_DAY: Final = 24
_KIB: Final = 1024


class TopicVolume(NamedTuple):
    """A topic: messages, bytes of payload, sizes, and when its first and last message came."""

    topic: str
    messages: int
    bytes: int
    mean_bytes: float
    p50_bytes: float
    p99_bytes: float
    first: datetime
    last: datetime


class TopicFit(NamedTuple):
    """How many rows of a typed topic are valid, and their delays from event to acceptance."""

    topic: str
    schema_id: str
    rows: int
    invalid: int
    p50_delay_ms: float | None
    p99_delay_ms: float | None
    max_delay_ms: int | None


@dataclass(frozen=True)
class Findings:
    """All that a report says."""

    source: str
    volumes: Sequence[TopicVolume] = ()
    hours: Sequence[tuple[datetime, int]] = ()
    deaths: Sequence[tuple[str, str, int]] = ()
    """Topic, reason, messages."""
    fits: Sequence[TopicFit] = ()
    delays: Sequence[tuple[str, int]] = ()
    """Rows by delay, the delay in words."""


def page(found: Findings) -> str:
    """Return the page."""
    messages = sum(volume.messages for volume in found.volumes)
    sections = [
        _volumes(found.volumes, messages),
        _hours(found.hours),
        _deaths(found.deaths),
        _fits(found.fits),
        _delays(found),
    ]
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="color-scheme" content="light dark">'
        f"<title>BraidMQ report</title><style>{_STYLE}</style></head>"
        f"<body><header><h1>BraidMQ report</h1>{_summary(found, messages)}</header>"
        f"<main>{''.join(sections)}</main></body></html>\n"
    )


def _summary(found: Findings, messages: int) -> str:
    total = sum(volume.bytes for volume in found.volumes)
    dead = sum(count for _, _, count in found.deaths)
    facts = [
        ("Messages", f"{messages:,}"),
        ("Topics", f"{len(found.volumes):,}"),
        ("Payloads", _bytes(total)),
        ("Dead letters", f"{dead:,}"),
    ]
    typed = sum(fit.rows for fit in found.fits)
    if typed:
        invalid = sum(fit.invalid for fit in found.fits)
        facts.append(("Invalid typed rows", _rate(invalid, typed)))
    summary = [f"The messages of {as_text(found.source, CELL_WIDTH_MAX)}"]
    if found.volumes:
        first = min(volume.first for volume in found.volumes)
        last = max(volume.last for volume in found.volumes)
        summary.append(f"accepted from {_moment(first)} to {_moment(last)}")
    listed = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
    return f"<p>{', '.join(summary)}.</p><dl>{listed}</dl>"


def _volumes(volumes: Sequence[TopicVolume], messages: int) -> str:
    by_count = sorted(volumes, key=lambda v: (-v.messages, v.topic))
    rows = [_volume_row(v, messages) for v in by_count[:TOP_COUNT]]
    drawn = [Bar(v.topic, v.messages, f"{v.messages:,}") for v in by_count[:TOP_COUNT]]
    if rest := by_count[TOP_COUNT:]:
        count, size = sum(v.messages for v in rest), sum(v.bytes for v in rest)
        texts = (f"{count:,}", _rate(count, messages), _bytes(size), _bytes(size / count))
        rows.append([_others(len(rest)), *texts, "", ""])
        drawn.append(Bar(_OTHERS.format(len(rest)), count, f"{count:,}"))
    heads = ("Topic", "Messages", "Share", "Payloads", "Mean size", "Median", "99th percentile")
    table = _table("Topics with the most messages", heads, rows)
    by_topic = _figure("messages", "Messages by topic", drawn, table)
    return _section("Volume by topic", by_topic, _weights(volumes))


def _volume_row(volume: TopicVolume, messages: int) -> list[str]:
    sizes = (volume.bytes, volume.mean_bytes, volume.p50_bytes, volume.p99_bytes)
    share = _rate(volume.messages, messages)
    return [_name(volume.topic), f"{volume.messages:,}", share, *map(_bytes, sizes)]


def _weights(volumes: Sequence[TopicVolume]) -> str:
    by_bytes = sorted(volumes, key=lambda v: (-v.bytes, v.topic))
    total = sum(v.bytes for v in volumes)
    drawn = [Bar(v.topic, v.bytes, _bytes(v.bytes)) for v in by_bytes[:TOP_COUNT]]
    rows = [[_name(bar.name), bar.shown, _rate(int(bar.size), total)] for bar in drawn]
    if rest := by_bytes[TOP_COUNT:]:
        size = sum(v.bytes for v in rest)
        drawn.append(Bar(_OTHERS.format(len(rest)), size, _bytes(size)))
        rows.append([_others(len(rest)), _bytes(size), _rate(size, total)])
    table = _table("Topics with the most bytes", ("Topic", "Payloads", "Share"), rows)
    return _figure("bytes", "Bytes of payloads by topic", drawn, table)


def _hours(hours: Sequence[tuple[datetime, int]]) -> str:
    by_hour = [0] * HOURS_A_DAY
    for moment, count in hours:
        by_hour[moment.astimezone(UTC).hour] += count
    drawn = [Bar(f"{hour:02}", count, f"{count:,}") for hour, count in enumerate(by_hour)]
    title = "Messages by hour of the day, UTC"
    chart = columns("hours", title, _described(drawn, "hour "), drawn, every=3)
    busiest = sorted(hours, key=lambda hour: (-hour[1], hour[0]))[:BUSIEST_COUNT]
    single = [[_moment(moment), f"{count:,}"] for moment, count in busiest]
    daily = [[f"{bar.name}:00", bar.shown] for bar in drawn if bar.size]
    heads = ("Hour from", "Messages")
    tables = (
        _table("The busiest single hours", heads, single),
        _table("By hour of the day, UTC", heads, daily),
    )
    return _section("Busiest hours", _beside(title, chart, *tables))


def _deaths(deaths: Sequence[tuple[str, str, int]]) -> str:
    if not deaths:
        return _section("Dead letters", "<p>There are none.</p>")
    reasons: Counter[str] = Counter()
    for _, reason, count in deaths:
        reasons[reason] += count
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    drawn = [Bar(reason, count, f"{count:,}") for reason, count in ordered[:TOP_COUNT]]
    by_count = sorted(deaths, key=lambda death: (-death[2], death[:2]))
    rows = [
        [_name(topic), _name(reason), f"{count:,}"]
        for topic, reason, count in by_count[:TOP_COUNT]
    ]
    if rest := by_count[TOP_COUNT:]:
        rows.append(["<i>others</i>", "", f"{sum(count for _, _, count in rest):,}"])
    heads = ("Topic", "Reason", "Messages")
    table = _table("Dead letters by topic and reason", heads, rows, texts=2)
    return _section("Dead letters", _figure("deaths", "Dead letters by reason", drawn, table))


def _fits(fits: Sequence[TopicFit]) -> str:
    if not fits:
        return _section("Typed topics", "<p>No topic was read with a schema.</p>")
    worst = sorted(fits, key=lambda fit: (-fit.invalid / max(fit.rows, 1), fit.topic))
    drawn = [
        Bar(fit.topic, fit.invalid / max(fit.rows, 1), _rate(fit.invalid, fit.rows))
        for fit in worst[:TOP_COUNT]
    ]
    rows = [
        [_name(fit.topic), _name(fit.schema_id), *_fit_numbers([fit])]
        for fit in worst[:TOP_COUNT]
    ]
    if rest := worst[TOP_COUNT:]:
        rows.append([_others(len(rest)), "", *_fit_numbers(rest)])
    heads = ("Topic", "Schema", "Rows", "Invalid", "Share")
    table = _table("Typed topics, most invalid first", heads, rows, texts=2)
    return _section("Typed topics", _figure("fits", "Share of invalid rows", drawn, table))


def _fit_numbers(fits: Sequence[TopicFit]) -> list[str]:
    rows, invalid = sum(fit.rows for fit in fits), sum(fit.invalid for fit in fits)
    return [f"{rows:,}", f"{invalid:,}", _rate(invalid, rows)]


def _delays(found: Findings) -> str:
    timed = [fit for fit in found.fits if fit.p50_delay_ms is not None]
    if not timed:
        return ""
    drawn = [Bar(name, count, f"{count:,}") for name, count in found.delays]
    slowest = sorted(timed, key=lambda fit: (-(fit.p99_delay_ms or 0), fit.topic))[:TOP_COUNT]
    rows = [
        [_name(fit.topic), _ms(fit.p50_delay_ms), _ms(fit.p99_delay_ms), _ms(fit.max_delay_ms)]
        for fit in slowest
    ]
    heads = ("Topic", "Median", "99th percentile", "Maximum")
    tables = (
        _table("Typed topics, slowest first", heads, rows),
        _table("Rows by delay", ("Delay", "Rows"), [[bar.name, bar.shown] for bar in drawn]),
    )
    chart = _figure("delays", "Typed rows by delay", drawn, *tables)
    return _section("From event to acceptance", chart)


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{''.join(parts)}</section>"


def _figure(chart_id: str, title: str, drawn: Sequence[Bar], *tables: str) -> str:
    return _beside(title, bars(chart_id, title, _described(drawn), drawn), *tables)


def _beside(title: str, chart: str, *tables: str) -> str:
    figure = f"<figure><figcaption>{html.escape(title)}</figcaption>{chart}</figure>"
    return f'<div class="pair">{figure}<div>{"".join(tables)}</div></div>'


def _table(
    caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1
) -> str:
    """Return a table whose first columns are *texts*, and the others numbers."""
    styles = ["" if number < texts else _NUMBER for number in range(len(heads))]
    head = "".join(
        f'<th scope="col"{style}>{name}</th>' for name, style in zip(heads, styles, strict=True)
    )
    body = "".join(f"<tr>{''.join(_cells(row, styles))}</tr>" for row in rows)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{html.escape(caption)}">'
        f"<table><caption>{html.escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _cells(row: Sequence[str], styles: Sequence[str]) -> Iterable[str]:
    for number, (cell, style) in enumerate(zip(row, styles, strict=True)):
        tag = 'th scope="row"' if number == 0 else "td"
        yield f"<{tag}{style}>{cell}</{tag[:2]}>"


def _others(count: int) -> str:
    return f"<i>{_OTHERS.format(count)}</i>"


def _name(text: str) -> str:
    return f"<bdi>{as_text(text, CELL_WIDTH_MAX)}</bdi>"


def _described(drawn: Sequence[Bar], before: str = "") -> str:
    """Return a chart in words for screen readers; the table beside it has all numbers."""
    if not drawn:
        return "There is nothing to show."
    most = max(drawn, key=lambda bar: bar.size)
    named = "bar" if len(drawn) == 1 else "bars"
    name = html.unescape(as_text(most.name))
    return f"{len(drawn)} {named}; the longest is {before}{name}: {most.shown}."


def _rate(part: int, whole: int) -> str:
    if not part or not whole:
        return "0%"
    share = 100 * part / whole
    return f"{share:.1f}%" if share >= 0.1 else "below 0.1%"  # noqa: PLR2004 - as it says


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < _KIB:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= _KIB
    return f"{size:,.1f} TiB"


def _ms(delay_ms: float | None) -> str:
    return "" if delay_ms is None else f"{delay_ms:,.0f} ms"


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


_OTHERS: Final = "the other {:,} topics"
_NUMBER: Final = ' class="number"'
_STYLE: Final = """
:root{--page:#fcfcfb;--text:#1c1b1a;--quiet:#5c5a55;--line:#dedbd4;--bar:#2f6db3}
@media(prefers-color-scheme:dark){
:root{--page:#17181a;--text:#eceae6;--quiet:#a9a69f;--line:#3a3b3e;--bar:#6aa5e8}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:1rem;background:var(--page);color:var(--text);
font:1rem/1.5 system-ui,sans-serif;overflow-wrap:break-word}
bdi{overflow-wrap:anywhere}
h1{font-size:1.6rem;margin:.5rem 0}h2{font-size:1.2rem;margin:2.5rem 0 .5rem}
dl{display:flex;flex-wrap:wrap;gap:.5rem 2rem;margin:1rem 0}
dt,caption,figcaption{color:var(--quiet);font-size:.875rem;text-align:left}
dd{margin:0;font-size:1.25rem;font-variant-numeric:tabular-nums}
.pair{display:grid;gap:1.5rem;grid-template-columns:minmax(0,1fr)}
@media(min-width:60rem){.pair{grid-template-columns:minmax(0,2fr) minmax(0,3fr)}}
figure{margin:0 0 1.5rem;max-width:34rem}figcaption{margin-bottom:.25rem}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--text);font:12px system-ui,sans-serif}
svg .number{text-anchor:end;font-variant-numeric:tabular-nums}svg .middle{text-anchor:middle}
.bar{fill:var(--bar)}.track{fill:var(--line)}.line{stroke:var(--line)}
.scroll{overflow-x:auto;background:
linear-gradient(90deg,var(--page) 50%,transparent) 0 0/2rem 100% no-repeat local,
linear-gradient(270deg,var(--page) 50%,transparent) 100% 0/2rem 100% no-repeat local,
linear-gradient(90deg,var(--line),transparent) 0 0/.75rem 100% no-repeat,
linear-gradient(270deg,var(--line),transparent) 100% 0/.75rem 100% no-repeat}
.scroll+.scroll,.pair+.pair{margin-top:1.5rem}
.scroll:focus-visible{outline:2px solid var(--bar)}
table{border-collapse:collapse;width:100%;font-size:.875rem}
th,td{padding:.25rem .75rem .25rem 0;border-bottom:1px solid var(--line);text-align:left;
vertical-align:top;font-weight:normal;min-width:4rem}
th:first-child,td:has(bdi){min-width:9rem}thead th{color:var(--quiet)}
td.number,th.number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
thead th.number{white-space:normal}
"""
