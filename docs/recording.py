"""A shell session, recorded in a real pseudo-terminal and drawn as an SVG that plays.

A session is a list of commands, typed one after the other into one bash; what the terminal
shows is kept with its times. In the SVG each line appears when it appeared in the terminal,
once; where animations are off, the whole session is shown. It loads no fonts or scripts.
"""

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.segment import Segment
from rich.terminal_theme import TerminalTheme
from rich.text import Text

COLUMNS: Final = 76
ROWS: Final = 40
# The mark at the end of a prompt by which terminals find it, and so do we.
_MARK: Final = "\x1b]133;B\x07"
_PROMPT: Final = r"$ \[\e]133;B\a\]"
_SECONDS_MAX: Final = 60.0
_PAUSE_S_MAX: Final = 1.2
"""Longer pauses become this long in the picture, as when a process starts."""

_ADVANCE: Final = 8.43
_LINE: Final = 20
_EDGE: Final = 18
_BAR: Final = 34
_BASIC: Final = (
    *((60, 66, 84), (242, 119, 122), (140, 207, 126), (250, 200, 99)),
    *((122, 162, 247), (199, 146, 234), (100, 211, 224), (214, 219, 229)),
)
_THEME: Final = TerminalTheme((27, 31, 42), (214, 219, 229), list(_BASIC))
_STYLE: Final = """
  text { font: 14px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
         fill: #d6dbe5; white-space: pre; }
  .typed { fill: #fff; font-weight: 600; }
  .prompt { fill: #8ccf7e; }
  @media (prefers-reduced-motion: no-preference) {
    .line { animation: appear 1ms linear backwards; }
  }
  @keyframes appear { from { visibility: hidden; } to { visibility: visible; } }
"""


@dataclass(frozen=True)
class Line:
    """One line of the terminal, with escape sequences, and when it was complete."""

    at: float
    text: str
    is_typed: bool = False


class Terminal:
    """A bash in a pseudo-terminal whose output is recorded."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._pid, self._file = pty.fork()
        if self._pid == 0:
            os.chdir(directory)
            words = ["bash", "--noprofile", "--norc", "--noediting", "-i"]
            variables = {**environment, "PS1": _PROMPT, "TERM": "xterm-256color"}
            os.execvpe("bash", words, variables)  # noqa: S606, S607 - a user's own shell
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._chunks: list[tuple[float, str]] = []
        self._prompts = 1
        self._wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._file)
        os.kill(self._pid, signal.SIGHUP)
        os.waitpid(self._pid, 0)

    def type(self, command: str, *, pause_s: float = 0.0) -> None:
        """Type *command*, and wait for the next prompt."""
        time.sleep(pause_s)  # so that viewers can read what is there
        os.write(self._file, command.encode() + b"\n")
        self._prompts += 1
        self._wait()

    def lines(self) -> Iterator[Line]:
        """Return what was shown so far, with long pauses shortened."""
        at = before = 0.0
        text = ""
        for seen_at, chunk in self._chunks:
            at += min(seen_at - (before or seen_at), _PAUSE_S_MAX)
            before = seen_at
            *complete, text = (text + chunk).split("\n")
            for line in complete:
                _, mark, typed = line.partition(_MARK)
                shown = typed if mark else line
                yield Line(at, shown.rstrip("\r"), is_typed=bool(mark))

    def _wait(self) -> None:
        """Read until there is a prompt for every command."""
        deadline = time.monotonic() + _SECONDS_MAX
        while sum(chunk.count(_MARK) for _, chunk in self._chunks) < self._prompts:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._file], [], [], left)[0]:
                raise TimeoutError(f"no prompt came back after {self._chunks[-1:]}")
            data = os.read(self._file, 65536).decode("utf-8", "replace")
            self._chunks.append((time.monotonic(), data))


def record(
    commands: list[tuple[str, Callable[[], None]]],
    directory: Path,
    environment: Mapping[str, str],
    *,
    pause_s: float,
    last: str,
) -> list[Line]:
    """Type *commands*, wait for what each of them started, and return what was seen.

    *last* is typed at the end, and not part of the recording.
    """
    with Terminal(directory, environment) as terminal:
        for command, ready in commands:
            terminal.type(command, pause_s=pause_s)
            ready()
        lines = list(terminal.lines())
        terminal.type(last)
        return lines


def drawn(lines: list[Line], title: str) -> str:
    """Return *lines* as an SVG."""
    width = round(COLUMNS * _ADVANCE) + 2 * _EDGE
    height = _BAR + len(lines) * _LINE + _EDGE
    body = "\n".join(_drawn_line(line, number) for number, line in enumerate(lines))
    buttons = "".join(
        f'<circle cx="{20 + 18 * n}" cy="18" r="5.5" fill="{color}"/>'
        for n, color in enumerate(("#f2777a", "#fac863", "#8ccf7e"))
    )
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
<rect width="{width}" height="{height}" rx="9" fill="#1b1f2a"/>
{buttons}
{body}
</svg>
"""


def _drawn_line(line: Line, number: int) -> str:
    y = _BAR + (number + 1) * _LINE
    delay = f' style="animation-delay:{line.at:.2f}s"'
    if line.is_typed:
        words = (
            f'<tspan class="prompt">$ </tspan><tspan class="typed">{escape(line.text)}</tspan>'
        )
        return f'<text class="line" x="{_EDGE}" y="{y}"{delay}>{words}</text>'
    words = "".join(map(_drawn_segment, Text.from_ansi(line.text).render(_CONSOLE)))
    return f'<text class="line" x="{_EDGE}" y="{y}"{delay}>{words}</text>'


def _drawn_segment(segment: Segment) -> str:
    style = segment.style
    text = escape(segment.text.rstrip("\n"))
    if style is None or style.color is None or style.color.is_default:
        return text
    return f'<tspan fill="{style.color.get_truecolor(_THEME).hex}">{text}</tspan>'


_CONSOLE: Final = Console(width=COLUMNS, color_system="truecolor", force_terminal=True)
