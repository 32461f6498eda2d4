"""The charts of a run of `braidmq bench`: one SVG file, or one HTML page with it inside.

Above are the rates over time, below the latency by percentile. That axis is logarithmic, so
that each further nine takes the same width.
"""

import math
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from braidmq.base.counts import counted
from braidmq.base.errors import ConfigError
from braidmq.base.svg import element, picture, text
from braidmq.cli.bench.load import BUCKET_S, Measured
from braidmq.cli.bench.report import Figures, percentile

WIDTH: Final = 760
HEIGHT: Final = 560
_LEFT: Final = 80
_RIGHT: Final = 20
_PANEL_HEIGHT: Final = 190
_TOPS: Final = (50, 310)
_TICKS: Final = 4
_NINES: Final = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99)
_STEPS: Final = 120
_STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#222}.t{font-weight:600;font-size:14px}"
    ".a{stroke:#999;stroke-width:1}.g{stroke:#ddd;stroke-width:1}"
    ".l{fill:none;stroke-width:2}.p{stroke:#1769aa}.d{stroke:#b3541e}"
    ".kp{fill:#1769aa}.kd{fill:#b3541e}.b{fill:#fff}"
    "@media(prefers-color-scheme:dark){text{fill:#eee}.g{stroke:#444}.b{fill:#16181c}"
    ".p{stroke:#6cb6ff}.d{stroke:#f0975a}.kp{fill:#6cb6ff}.kd{fill:#f0975a}}"
)

Point = tuple[float, float]


def kind_of(path: Path) -> str:
    """Return the kind of file to write.

    Raises:
        ConfigError: It is neither .svg nor .html, or its directory does not exist.
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind not in {"svg", "html"}:
        raise ConfigError("--plot", "must be a file that ends in .svg or .html")
    if not path.parent.is_dir():
        raise ConfigError("--plot", f"there is no directory {path.parent}")
    return kind


def write(path: Path, found: Figures, measured: Measured) -> None:
    """Write the charts to *path*."""
    drawn = svg(found, measured)
    if kind_of(path) == "html":
        title = escape(_title(found))
        drawn = (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width">'
            '<meta name="color-scheme" content="light dark">'
            f"<title>{title}</title></head><body>\n{drawn}\n</body></html>"
        )
    path.write_text(drawn + "\n", "utf-8")


def svg(found: Figures, measured: Measured) -> str:
    """Return the charts as one picture."""
    title = _title(found)
    drawn = [
        element("style", _STYLE),
        element("rect", class_="b", width=WIDTH, height=HEIGHT),
        text(title, class_="t", x=_LEFT, y=20),
        *_rates(measured),
        *_latencies(measured),
    ]
    about = "Rates over time, and latency by percentile"
    return picture(
        WIDTH, HEIGHT, drawn, name="bench", title=title, description=about, standalone=True
    )


def _title(found: Figures) -> str:
    return (
        f"{found.strand}, QoS {found.qos}, {found.size} bytes, "
        f"{counted(found.publishers, 'publisher')}, "
        f"{counted(found.subscribers, 'subscriber')}: {found.publish_rate:,.0f} messages/s"
    )


def _rates(measured: Measured) -> list[str]:
    lines = [_per_second(measured.published_at), _per_second(measured.delivered_at)]
    highest = max((y for line in lines for _, y in line), default=1.0)
    longest = max((x for line in lines for x, _ in line), default=BUCKET_S)
    ticks = [(longest * n / _TICKS, f"{longest * n / _TICKS:.3g} s") for n in range(_TICKS + 1)]
    panel = _panel(_TOPS[0], "messages per second", highest, ticks, longest)
    for name, line, at in (("p", lines[0], 0), ("d", lines[1], 90)):
        panel.append(_line(name, line, _TOPS[0], longest, highest))
        word = "published" if name == "p" else "delivered"
        place = WIDTH - _RIGHT - 160 + at
        panel.append(text(word, class_=f"k{name}", x=place, y=_TOPS[0] - 8))
    return panel


def _per_second(counts: "Counter[int]") -> list[Point]:
    if not counts:
        return []
    return [(n * BUCKET_S, counts[n] / BUCKET_S) for n in range(max(counts) + 1)]


def _latencies(measured: Measured) -> list[str]:
    ordered = sorted(measured.latencies) or sorted(measured.confirmations)
    if not ordered:
        return []
    last = _NINES[-1]
    for nines in _NINES:
        # With too few messages for a percentile, it would only be the largest value again.
        if len(ordered) * (100 - nines) / 100 < 1:
            last = nines
            break
    width = _nines(last)
    points = [
        (x, percentile(ordered, 100 - 100 * 10**-x) * 1000)
        for x in (width * step / _STEPS for step in range(_STEPS + 1))
    ]
    ticks = [(_nines(p), f"p{p:g}") for p in _NINES if p <= last]
    highest = max(y for _, y in points) or 1.0
    panel = _panel(_TOPS[1], "latency, ms, by percentile", highest, ticks, width)
    return [*panel, _line("d", points, _TOPS[1], width, highest)]


def _nines(wanted: float) -> float:
    """Return the position of a percentile on the axis: 90 is 1, 99 is 2, 99.9 is 3."""
    return -math.log10(1 - wanted / 100)


def _panel(
    top: int, title: str, highest: float, ticks: Sequence[tuple[float, str]], width: float
) -> list[str]:
    bottom = top + _PANEL_HEIGHT
    parts = [text(title, class_="t", x=_LEFT, y=top - 8)]
    for n in range(_TICKS + 1):
        y = bottom - _PANEL_HEIGHT * n / _TICKS
        kind = "g" if n else "a"
        parts.append(element("line", class_=kind, x1=_LEFT, x2=WIDTH - _RIGHT, y1=y, y2=y))
        label = _label(highest * n / _TICKS)
        parts.append(text(label, x=_LEFT - 8, y=y + 4, text_anchor="end"))
    for at, label in ticks:
        parts.append(text(label, x=_x(at, width), y=bottom + 18, text_anchor="middle"))
    return parts


def _label(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"  # noqa: PLR2004 - four digits


def _line(name: str, points: Sequence[Point], top: int, width: float, highest: float) -> str:
    places = (
        f"{_x(x, width):.1f},{top + _PANEL_HEIGHT * (1 - y / (highest or 1.0)):.1f}"
        for x, y in points
    )
    return element("polyline", class_=f"l {name}", points=" ".join(places))


def _x(at: float, width: float) -> float:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * (at / width if width else 0.0)
