"""Log lines."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.masking import escaped
from braidmq.daemon.logs import configure_logs, mask_secrets
from braidmq.server.access.keys import new_key

KEY = "bk_" + 43 * "k"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    yield from configured(io.StringIO())


@pytest.fixture
def terminal() -> Iterator[io.StringIO]:
    yield from configured(Terminal())


def configured(stream: io.StringIO) -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    configure_logs(stream)
    yield stream
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_off_a_terminal_a_line_is_json(stream: io.StringIO) -> None:
    """With the event, its fields, the level and a time in UTC."""
    structlog.get_logger("x").warning("listening", strand="blip", port=5555)

    (line,) = lines(stream)
    assert str(line.pop("timestamp")).endswith("Z")
    assert {"event": "listening", "level": "warning", "strand": "blip", "port": 5555} == line


def test_on_a_terminal_a_line_is_for_people(terminal: io.StringIO) -> None:
    """Coloured and not JSON; text from a peer cannot colour it."""
    structlog.get_logger("x").info("connected", peer="evil\x1b[2J")

    assert "connected" in terminal.getvalue()
    assert not terminal.getvalue().startswith("{")
    assert "\x1b[2J" not in terminal.getvalue()
    assert "\\x1b[2J" in terminal.getvalue()


def test_log_lines_of_libraries_are_treated_alike(stream: io.StringIO) -> None:
    """Errors of asyncio are structured, escaped and stripped of keys, too."""
    logging.getLogger("asyncio").error("bad\n%s", KEY)

    (line,) = lines(stream)
    assert ("bad\\n********", "error") == (line["event"], line["level"])


def test_lines_below_the_level_are_not_written(stream: io.StringIO) -> None:
    """Debugging is off."""
    structlog.get_logger("x").debug("quiet")

    assert "" == stream.getvalue()


def test_a_peer_cannot_forge_a_line(stream: io.StringIO) -> None:
    """Line breaks and escapes inside values are text, even in nested values."""
    structlog.get_logger("x").info("a\nb", topic="c\r\nd", more=["e\x00", {"f\x1b": b"\x07"}])

    (line,) = lines(stream)
    assert ("a\\nb", "c\\r\\nd") == (line["event"], line["topic"])
    assert ["e\\x00", {"f\\x1b": "b'\\x07'"}] == line["more"]


def test_a_peers_text_is_never_a_format(stream: io.StringIO) -> None:
    """Neither in our lines nor in those of libraries that format theirs."""
    hostile = "%s%n%(name)s{0}{x!r:>99999999}"
    structlog.get_logger("x").info("closed", reason=hostile)
    logging.getLogger("x").warning("closed: %s", hostile)

    ours, theirs = lines(stream)
    assert (hostile, f"closed: {hostile}") == (ours["reason"], theirs["event"])


def test_a_long_string_is_truncated(stream: io.StringIO) -> None:
    """After 256 characters, with an ellipsis."""
    structlog.get_logger("x").info("x", exact=256 * "a", longer=257 * "a")

    (line,) = lines(stream)
    assert (256 * "a", 256 * "a" + "…") == (line["exact"], line["longer"])


def test_a_traceback_keeps_its_lines_but_no_escapes_and_no_keys(stream: io.StringIO) -> None:
    """It is our own text around a message that may come from a peer."""
    try:
        int(f"\x1b{KEY}")
    except ValueError:
        structlog.get_logger("x").exception("failed")

    (line,) = lines(stream)
    exception = str(line["exception"])
    assert exception.startswith("Traceback")
    assert KEY not in exception
    assert "\nValueError: invalid literal" in exception


SECRET_FIELDS = [
    "key",
    "token",
    "password",
    "payload",
    "secret",
    "api_key",
    "auth_token",
    "KEY",
]


@pytest.mark.parametrize("name", SECRET_FIELDS)
def test_secret_fields_are_masked(name: str) -> None:
    """By name, at the top level and nested, whatever the value is."""
    event = mask_secrets(None, "info", {name: "x", "inside": [{name: b"x"}], "other": "x"})

    assert {name: "********", "inside": [{name: "********"}], "other": "x"} == event


def test_the_size_of_a_secret_is_not_secret() -> None:
    """`payload_bytes` is a number worth reading."""
    assert {"payload_bytes": 3} == mask_secrets(None, "info", {"payload_bytes": 3})


@given(st.integers(0, 300), st.text(max_size=9))
def test_no_api_key_is_shown_wherever_it_stands(before: int, after: str) -> None:
    """Neither whole nor the part that truncation would leave."""
    key = new_key()
    text = escaped(f"{before * '.'} {key} {after}")

    assert key[:12] not in text
    assert text.isprintable()


def test_no_color_turns_colours_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR applies to log lines on a terminal, too."""
    monkeypatch.setenv("NO_COLOR", "1")
    for terminal in configured(Terminal()):
        structlog.get_logger("x").info("connected", peer="a")

        assert "\x1b[" not in terminal.getvalue()
