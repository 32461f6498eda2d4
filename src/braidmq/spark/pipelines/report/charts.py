"""Charts as inline SVG: horizontal bars with a name above each, and vertical columns.

A chart fetches nothing and runs nothing, and says in words what it shows (`title`, `desc`). It
is drawn for the width of a phone and scaled up from there, so text is never smaller than on a
phone. The page sets the colours.

    name                     1,234
    ███████████████▏

Names are untrusted: they are text, bounded, without control characters.
"""

import html
from collections.abc import Sequence
from typing import Final, NamedTuple
from unicodedata import east_asian_width

from braidmq.base.svg import element, picture, text

WIDTH: Final = 328
"""Of every chart; a phone 360 pixels wide has this much between its margins."""

NAME_WIDTH_MAX: Final = 36
"""What fits beside a number, in columns of text; tables show more of a name."""

_BAR_ROW: Final = 34
_BAR_HEIGHT: Final = 10
_BAR_TOP: Final = 19
_BASELINE: Final = 13
_COLUMNS_HEIGHT: Final = 120
_COLUMNS_TOP: Final = 18
_COLUMNS_FOOT: Final = 20
_LENGTH_MIN: Final = 1.5
"""Of a bar that is not zero, so that it can be seen beside the largest."""


class Bar(NamedTuple):
    """One value: its name, its size, and the size in words."""

    name: str
    size: float
    shown: str


def as_text(name: str, width_max: int = NAME_WIDTH_MAX) -> str:
    r"""Return a name for a page: control characters as `\x1b`, bounded, escaped."""
    return html.escape(bounded(name, width_max))


def bounded(name: str, width_max: int = NAME_WIDTH_MAX) -> str:
    r"""Return a name of at most *width_max* columns, control characters as `\x1b`."""
    visible = "".join(map(_visible, name[: width_max + 1]))  # cut first: a name may be long
    kept, width = 0, 0
    for character in visible:
        width += 2 if east_asian_width(character) in "WF" else 1
        kept += width < width_max
    if width > width_max:
        visible = visible[:kept] + "…"
    return visible


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def bars(chart_id: str, title: str, description: str, values: Sequence[Bar]) -> str:
    """Return horizontal bars, scaled to the largest."""
    largest = max((bar.size for bar in values), default=0.0)
    drawn = [part for number, bar in enumerate(values) for part in _bar(number, bar, largest)]
    height = max(len(values), 1) * _BAR_ROW
    return picture(WIDTH, height, drawn, name=chart_id, title=title, description=description)


def _bar(number: int, bar: Bar, largest: float) -> list[str]:
    top = number * _BAR_ROW
    length = _share(bar.size, largest, WIDTH)
    words, box = top + _BASELINE, top + _BAR_TOP
    return [
        text(bounded(bar.name), x=0, y=words),
        text(bounded(bar.shown), class_="number", x=WIDTH, y=words),
        element("rect", class_="track", x=0, y=box, width=WIDTH, height=_BAR_HEIGHT, rx=2),
        element("rect", class_="bar", x=0, y=box, width=length, height=_BAR_HEIGHT, rx=2),
    ]


def columns(
    chart_id: str, title: str, description: str, values: Sequence[Bar], *, every: int = 1
) -> str:
    """Return vertical columns, scaled to the largest; one in *every* has its name below."""
    largest = max((bar.size for bar in values), default=0.0)
    step = WIDTH / max(len(values), 1)
    foot = _COLUMNS_TOP + _COLUMNS_HEIGHT
    drawn = [
        element("line", class_="line", x1=0, x2=WIDTH, y1=y, y2=y) for y in (_COLUMNS_TOP, foot)
    ]
    top = max(values, key=lambda bar: bar.size, default=None)
    if top is not None:
        drawn.append(text(bounded(top.shown), x=0, y=_BASELINE))
    for number, bar in enumerate(values):
        height = _share(bar.size, largest, _COLUMNS_HEIGHT)
        x = number * step
        corner = {"x": x + step * 0.1, "y": foot - height}
        drawn.append(element("rect", class_="bar", **corner, width=step * 0.8, height=height))
        if number % every == 0:
            below = {"x": x + step / 2, "y": foot + _BASELINE + 2}
            drawn.append(text(bounded(bar.name), class_="middle", **below))
    height = foot + _COLUMNS_FOOT
    return picture(WIDTH, height, drawn, name=chart_id, title=title, description=description)


def _share(size: float, largest: float, length: float) -> float:
    if size <= 0 or largest <= 0:
        return 0.0
    return round(max(size / largest * length, _LENGTH_MIN), 2)
