"""Charts as inline SVG: bars that lie, with a name above each, and columns that stand.

Nothing is fetched and nothing runs. Every chart says in words what it shows (`title`, `desc`).
It is drawn for the width of a telephone, and scaled up from there, so that its letters are
never smaller than they are there. Colours are the page's.

    name                     1,234
    ███████████████▏

Names come from strangers: they are text, bounded, without control characters.
"""

import html
from collections.abc import Sequence
from typing import Final, NamedTuple
from unicodedata import east_asian_width

WIDTH: Final = 328
"""Units of every chart; a telephone of 360 pixels has so many between its margins."""

NAME_WIDTH_MAX: Final = 36
"""What fits beside a number; letters of some scripts are two wide. Tables have more of it."""

_BAR_ROW: Final = 34
_BAR_HEIGHT: Final = 10
_BAR_TOP: Final = 19
_BASELINE: Final = 13
_COLUMNS_HEIGHT: Final = 120
_COLUMNS_TOP: Final = 18
_COLUMNS_FOOT: Final = 20
_LEAST: Final = 1.5
"""What is not zero is seen, however small it is beside the largest."""


class Bar(NamedTuple):
    """One value: its name, its size, and the size in words."""

    name: str
    size: float
    shown: str


def as_text(name: str, width_max: int = NAME_WIDTH_MAX) -> str:
    r"""Return a name for a page: control characters as `\x1b`, bounded, escaped."""
    visible = "".join(map(_visible, name[: width_max + 1]))
    kept, width = 0, 0
    for character in visible:
        width += 2 if east_asian_width(character) in "WF" else 1
        kept += width < width_max
    if width > width_max:
        visible = visible[:kept] + "…"
    return html.escape(visible)


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def bars(chart_id: str, title: str, description: str, values: Sequence[Bar]) -> str:
    """Return bars one below the other, each as long as its share of the largest."""
    largest = max((bar.size for bar in values), default=0.0)
    drawn = [_bar(number, bar, largest) for number, bar in enumerate(values)]
    return _svg(chart_id, title, description, max(len(values), 1) * _BAR_ROW, drawn)


def _bar(number: int, bar: Bar, largest: float) -> str:
    top = number * _BAR_ROW
    length = _share(bar.size, largest, WIDTH)
    return (
        f'<text x="0" y="{top + _BASELINE}">{as_text(bar.name)}</text>'
        f'<text class="number" x="{WIDTH}" y="{top + _BASELINE}">{as_text(bar.shown)}</text>'
        f'<rect class="track" x="0" y="{top + _BAR_TOP}" width="{WIDTH}" '
        f'height="{_BAR_HEIGHT}" rx="2"/>'
        f'<rect class="bar" x="0" y="{top + _BAR_TOP}" width="{length:g}" '
        f'height="{_BAR_HEIGHT}" rx="2"/>'
    )


def columns(
    chart_id: str, title: str, description: str, values: Sequence[Bar], *, every: int = 1
) -> str:
    """Return columns side by side on one line; every so many of them has its name below."""
    largest = max((bar.size for bar in values), default=0.0)
    step = WIDTH / max(len(values), 1)
    foot = _COLUMNS_TOP + _COLUMNS_HEIGHT
    drawn = [
        f'<line class="line" x1="0" x2="{WIDTH}" y1="{y}" y2="{y}"/>'
        for y in (_COLUMNS_TOP, foot)
    ]
    top = max(values, key=lambda bar: bar.size, default=None)
    if top is not None:
        drawn.append(f'<text x="0" y="{_BASELINE}">{as_text(top.shown)}</text>')
    for number, bar in enumerate(values):
        height = _share(bar.size, largest, _COLUMNS_HEIGHT)
        x = number * step
        drawn.append(
            f'<rect class="bar" x="{x + step * 0.1:g}" y="{foot - height:g}" '
            f'width="{step * 0.8:g}" height="{height:g}"/>'
        )
        if number % every == 0:
            drawn.append(
                f'<text class="middle" x="{x + step / 2:g}" y="{foot + _BASELINE + 2}">'
                f"{as_text(bar.name)}</text>"
            )
    return _svg(chart_id, title, description, foot + _COLUMNS_FOOT, drawn)


def _share(size: float, largest: float, length: float) -> float:
    if size <= 0 or largest <= 0:
        return 0.0
    return round(max(size / largest * length, _LEAST), 2)


def _svg(
    chart_id: str, title: str, description: str, height: float, drawn: Sequence[str]
) -> str:
    return (
        f'<svg role="img" viewBox="0 0 {WIDTH} {height:g}" '
        f'aria-labelledby="{chart_id}-title {chart_id}-desc">'
        f'<title id="{chart_id}-title">{html.escape(title)}</title>'
        f'<desc id="{chart_id}-desc">{html.escape(description)}</desc>'
        f"{''.join(drawn)}</svg>"
    )
