"""How `braidmq top` shows one update: on a terminal, as plain lines and as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from braidmq.base.printable import printable

if TYPE_CHECKING:  # rich is not needed to print --help
    from rich.console import RenderableType

TOPICS_SHOWN: Final = 10
TOPICS_IN_JSON: Final = 20
NAME_CHARS_MAX: Final = 60
_STRANDS: Final = ("blip", "vibe", "qumbed", "http", "spark")
_ROWS_BESIDES: Final = 18
"""Lines of the screen that are not topics."""

_KIB: Final = 1024


class Point(msgspec.Struct, rename={"into": "in"}):
    """The numbers of one second, from `/api/events`; rates are per second."""

    time: str = ""
    into: dict[str, float] = {}  # msgspec makes each point its own
    out: dict[str, float] = {}
    in_bytes: float = 0.0
    acks: float = 0.0
    backlog: int = 0
    in_flight: int = 0
    dead_letters: int = 0
    fsync_p50_ms: float | None = None
    fsync_p99_ms: float | None = None
    commits: float = 0.0
    memory_bytes: int = 0
    rss_bytes: int | None = None
    connections: dict[str, int] = {}
    loop_lag_ms: float | None = None
    log_bytes: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """One update; topics: name, messages per second (None at first), number of messages."""

    place: str
    overview: Mapping[str, object]
    point: Point
    topics: list[tuple[str, float | None, int]]

    def as_json(self) -> dict[str, object]:
        """Return it as JSON."""
        return {
            "broker": self.place,
            "overview": {k: v for k, v in self.overview.items() if k != "build"},
            "numbers": msgspec.to_builtins(self.point),
            "topics": [
                {"name": name, "rate": rate, "messages": count}
                for name, rate, count in self.topics[:TOPICS_IN_JSON]
            ],
        }


def point_of(name: str, data: object) -> Point | None:
    """Return the numbers of an event, or None for other events."""
    if name == "history" and isinstance(data, list) and data:
        data = data[-1]
    elif name != "numbers":
        return None
    try:
        return msgspec.convert(data, Point)
    except msgspec.ValidationError:
        return None


def facts(view: View) -> list[tuple[str, str]]:
    """Return the lines that are not rates: label and value."""
    point, overview = view.point, view.overview
    connections = ", ".join(
        f"{printable(k)} {n}" for k, n in sorted(point.connections.items()) if n
    )
    limit = overview.get("memory_limit_bytes")
    held = size(point.memory_bytes)
    if isinstance(limit, int) and limit:
        held += f" of {size(limit)}"
    if point.rss_bytes:
        held += f", process {size(point.rss_bytes)}"
    lag = "" if point.loop_lag_ms is None else f", loop lag {point.loop_lag_ms:,.1f} ms"
    return [
        ("backlog", f"{point.backlog:,} waiting, {point.in_flight:,} in flight"),
        ("dead letters", f"{point.dead_letters:,}"),
        ("fsync", f"{_ms(point.fsync_p50_ms)} p50, {_ms(point.fsync_p99_ms)} p99{lag}"),
        ("commits", f"{point.commits:,.0f}/s, {size(point.in_bytes)}/s in"),
        ("memory", held),
        ("log", size(point.log_bytes)),
        ("connections", connections or "none"),
    ]


def title(view: View) -> str:
    """Return the broker's version, address and state."""
    overview = view.overview
    state = "ready" if overview.get("ready") else f"not ready: {overview.get('reason')}"
    up = overview.get("uptime_s")
    since = f", up {_time(float(up))}" if isinstance(up, int | float) else ""
    return printable(f"BraidMQ {overview.get('version')} at {view.place}, {state}{since}")


def rates(view: View) -> list[tuple[str, float, float]]:
    """Return messages per second in and out, by strand and in total."""
    into, out = view.point.into, view.point.out
    known = [name for name in _STRANDS if name in into or name in out]
    rows = [(name, into.get(name, 0.0), out.get(name, 0.0)) for name in known]
    return [*rows, ("total", sum(into.values()), sum(out.values()))]


def plain(view: View) -> str:
    """Return it as plain, tab-separated lines."""
    lines = [title(view), "strand\tin/s\tout/s"]
    lines += [f"{name}\t{into:.0f}\t{out:.0f}" for name, into, out in rates(view)]
    lines += [f"{name}\t{said}" for name, said in facts(view)]
    lines.append("topic\tmessages/s\tmessages")
    lines += [
        f"{printable(name)}\t{_rate(rate)}\t{count}"
        for name, rate, count in view.topics[:TOPICS_SHOWN]
    ]
    return "\n".join(lines) + "\n"


def print_drawn(view: View) -> None:
    """Print it once on a terminal."""
    from rich.console import Console

    Console().print(drawn(view, height=_ROWS_BESIDES + TOPICS_SHOWN, is_live=False))


def drawn(view: View, *, height: int, is_live: bool = True) -> "RenderableType":
    """Return it as rich draws it on a screen of *height* lines."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    flow = Table("strand", box=box.SIMPLE_HEAD)
    for head in ("in/s", "out/s"):
        flow.add_column(head, justify="right", min_width=10)
    for name, into, out in rates(view):
        flow.add_row(name, f"{into:,.0f}", f"{out:,.0f}")
    state = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, said in facts(view):
        state.add_row(Text(name, style="dim"), said)
    both = Table.grid(padding=(0, 4))
    both.add_row(flow, Group("", "", state))
    busiest = Table("busiest topics", box=box.SIMPLE_HEAD)
    for head in ("messages/s", "messages"):
        busiest.add_column(head, justify="right", min_width=10)
    for name, rate, count in view.topics[: max(1, height - _ROWS_BESIDES)]:
        # Text is not parsed as markup; topic names may contain anything.
        shown = Text(_cut(printable(name)), overflow="ellipsis", no_wrap=True)
        busiest.add_row(shown, _rate(rate), f"{count:,}")
    parts: list[RenderableType] = [Text(title(view), style="bold"), both, busiest]
    if is_live:
        parts.append(Text("press Ctrl-C to stop", "dim"))
    return Group(*parts)


def away(reason: str) -> "RenderableType":
    """Return what to show while the broker is away."""
    from rich.console import Group
    from rich.text import Text

    told = Text("trying again every second; press Ctrl-C to stop", "dim")
    return Group(Text(printable(reason), style="bold"), told)


def size(count: float) -> str:
    """Return a number of bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < _KIB:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= _KIB
    return f"{count:,.1f} TiB"


def _cut(name: str) -> str:
    return name if len(name) <= NAME_CHARS_MAX else name[: NAME_CHARS_MAX - 1] + "…"


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.0f}"


def _ms(value: float | None) -> str:
    return f"{value:,.2f} ms" if value else "-"  # 0 means that no fsync was measured


def _time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
