"""`braidmq publish` and `braidmq subscribe`, on the client library."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Argument, Option

from braidmq.base.errors import ConfigError
from braidmq.base.limits import MESSAGE_BYTES_MAX
from braidmq.base.printable import printable
from braidmq.cli.api import Url, strand_address
from braidmq.cli.completion import topic_names
from braidmq.cli.contexts import place_of
from braidmq.cli.data import message_format
from braidmq.cli.exact_json import payload_as_json
from braidmq.cli.option_groups import grouped
from braidmq.cli.signals import run_until_ended
from braidmq.cli.terminal import AsJson, print_done, print_json

if TYPE_CHECKING:  # the client library is not needed to print --help
    from braidmq.client import Message, Subscription
    from braidmq.client.options import Choices

Topic = Annotated[
    str, Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=topic_names)
]
Qos = Annotated[
    int,
    Option(
        min=0,
        max=1,
        metavar="0|1",
        help="1: kept on disk until it is acknowledged; 0: in memory only (Blip).",
    ),
]
_NO_PAYLOAD: Final = "is missing; give a text, '' for an empty message, or pipe it in"


@dataclass(frozen=True, kw_only=True)
class Sending:
    """How a message is published."""

    qos: Qos = 1
    header: Annotated[
        list[str] | None,
        Option(metavar="NAME=VALUE", help="Header to send with it; may be repeated (Vibe)."),
    ] = None
    priority: Annotated[
        int | None, Option(metavar="0-3", help="From 0, low, to 3, critical (Vibe).")
    ] = None
    recipient: Annotated[
        str | None,
        Option(metavar="HEX", help="Encrypt the payload for this public key (Qumbed)."),
    ] = None
    envelope: Annotated[
        bool,
        Option(
            "--envelope",
            help="Encrypt topic, sequence number and time with the payload (Qumbed).",
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class OverQumbed:
    """Options of both commands that only Qumbed has."""

    schema: Annotated[
        str, Option(metavar="ID", help="Schema that payloads must match (Qumbed).")
    ] = ""
    private_key: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Private key, of `braidmq keygen`. Default: a new one (Qumbed).",
        ),
    ] = None
    ca_file: Annotated[
        Path | None,
        Option(metavar="FILE", help="CA certificates to verify the broker with (Qumbed)."),
    ] = None
    insecure: Annotated[bool, Option("--insecure", help="Accept any certificate (Qumbed).")] = (
        False
    )

    def choices(self, trust: list[str] | None = None) -> "Choices":
        """Return the options of the connection."""
        return {
            "private_key": self.private_key,
            "ca_file": self.ca_file,
            "insecure": self.insecure,
            "trust": trust or None,
        }


@grouped
def publish(
    topic: Topic,
    payload: Annotated[
        str | None,
        Argument(
            metavar="PAYLOAD|-",
            help="Text to publish; - or nothing reads standard input.",
            show_default=False,
        ),
    ] = None,
    *,
    sending: Sending,
    qumbed: OverQumbed,
    count: Annotated[
        int, Option(min=1, metavar="N", help="Publish the message this many times.")
    ] = 1,
    lines: Annotated[
        bool,
        Option(
            "--lines",
            help="Publish each line of standard input as a message, as it arrives, until the "
            "input ends or Ctrl-C.",
        ),
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Publish a message, and wait until it is safe on disk.

    The scheme of --url chooses the protocol: blip:// by default, vibe:// for queues, headers
    and priorities, qumbed:// for encryption.
    """
    if lines:
        if payload not in {None, "-"} or count != 1:
            raise ConfigError("--lines", "reads standard input: give no PAYLOAD and no --count")
        _publish_lines(_url(url), topic, sending, qumbed, as_json=as_json)
        return
    payloads = repeat(_payload(payload), count)
    asyncio.run(_publish(_url(url), topic, payloads, sending, qumbed))
    _print_published(topic, count, sending.qos, as_json=as_json)


@grouped
def subscribe(
    topic: Topic,
    *,
    count: Annotated[
        int | None, Option(min=1, metavar="N", help="Exit after this many messages.")
    ] = None,
    qos: Qos = 1,
    trust: Annotated[
        list[str] | None,
        Option(
            metavar="HEX",
            help="Accept only messages from this public key; may be repeated (Qumbed).",
        ),
    ] = None,
    envelope: Annotated[
        bool, Option("--envelope", help="Refuse messages without an envelope (Qumbed).")
    ] = False,
    qumbed: OverQumbed,
    template: Annotated[
        str | None,
        Option(
            "--format",
            metavar="TEMPLATE",
            help="How to print a message: json, or text with fields, as '{id} {payload}'. "
            "Fields: topic, payload, id, qos, attempt, timestamp, size, headers, header.NAME, "
            "sender, schema. Default: the payload.",
        ),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Print the messages of a topic as they arrive, until Ctrl-C.

    Only messages published from now on are printed, except on Vibe, where those waiting in the
    queue come first. The subscription is removed on exit. In a pipe payloads are printed
    byte for byte, unless --format is given, which escapes what is not printable.
    """
    write = _writer(template, as_json=as_json)
    address, choices = _url(url), qumbed.choices(trust)

    async def run() -> None:
        import braidmq

        choices["on_reconnect"] = lambda: _note("reconnected")
        async with (
            braidmq.connect(address, **choices) as client,
            client.subscribe(
                topic, qos=qos, envelope=envelope, schema=qumbed.schema
            ) as messages,
        ):
            if sys.stderr.isatty():
                _note(f"waiting for messages on {printable(topic)}; press Ctrl-C to stop")
            await _print_messages(messages, count, write)

    run_until_ended(run())


def _url(url: str | None) -> str:
    place = place_of(url)
    return strand_address(place.url, http=place.http)


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError("--header", "must be NAME=VALUE")
    return name, value


def _payload(argument: str | None) -> bytes:
    if argument is None and sys.stdin.isatty():
        raise ConfigError("PAYLOAD", _NO_PAYLOAD)
    if argument is None or argument == "-":
        payload = sys.stdin.buffer.read(MESSAGE_BYTES_MAX + 1)
        if argument is None and not payload:  # empty stdin, as under cron
            raise ConfigError("PAYLOAD", _NO_PAYLOAD)
    else:
        # The shell passes bytes, not necessarily UTF-8: they are sent unchanged.
        payload = os.fsencode(argument)
    if len(payload) > MESSAGE_BYTES_MAX:
        raise ConfigError("PAYLOAD", f"must be at most {MESSAGE_BYTES_MAX} bytes")
    return payload


def _options(sending: Sending, qumbed: OverQumbed) -> dict[str, Any]:
    """Return the options of `publish_many`."""
    return {
        "qos": sending.qos,
        "headers": dict(map(_header, sending.header)) if sending.header else None,
        "priority": sending.priority,
        "recipient": sending.recipient,
        "envelope": sending.envelope,
        "schema": qumbed.schema,
    }


async def _publish(
    url: str, topic: str, payloads: Iterable[bytes], sending: Sending, qumbed: OverQumbed
) -> None:
    import braidmq
    from braidmq.client.errors import PublishError

    options = _options(sending, qumbed)
    async with braidmq.connect(url, **qumbed.choices()) as client:
        for result in await client.publish_many(topic, payloads, **options):
            if isinstance(result, PublishError):
                raise result


def _publish_lines(
    url: str, topic: str, sending: Sending, qumbed: OverQumbed, *, as_json: bool
) -> None:
    from braidmq.cli.data.lines import Lines

    options = _options(sending, qumbed)

    async def run() -> Lines:
        import braidmq

        lines = Lines()
        async with braidmq.connect(url, **qumbed.choices()) as client:
            if sys.stdin.isatty():
                _note("each line is a message; press Ctrl-D to end")
            await lines.publish(client, topic, options)
        return lines

    lines = asyncio.run(run())
    _print_published(topic, lines.confirmed, sending.qos, as_json=as_json)
    if lines.is_interrupted:
        raise KeyboardInterrupt


def _print_published(topic: str, count: int, qos: int, *, as_json: bool) -> None:
    done = {"topic": topic, "count": count, "qos": qos}
    print_done(done, f"published {count} to {printable(topic)}", as_json=as_json)


async def _print_messages(
    messages: "Subscription", count: int | None, write: "Callable[[Message], None]"
) -> None:
    printed = 0
    async for message in messages:
        # Acknowledged after printing: if printing fails, the message is redelivered.
        async with message.process():
            write(message)
        printed += 1
        if printed == count:
            return


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _writer(template: str | None, *, as_json: bool) -> "Callable[[Message], None]":
    """Return what prints a message.

    Raises:
        ConfigError: The template is not valid, or is not the only choice.
    """
    if as_json and template not in {None, message_format.JSON}:
        raise ConfigError("--format", "give either --format or --json")
    if as_json or template == message_format.JSON:
        return _print_as_json
    if template is None:
        return _print_payload
    pieces = message_format.parse(template)

    def print_shown(message: "Message") -> None:
        line = message_format.shown(pieces, message) + "\n"
        # Escaped as well: what the encoding of the output does not have.
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.buffer.write(line.encode(encoding, "backslashreplace"))
        sys.stdout.flush()

    return print_shown


def _print_as_json(message: "Message") -> None:
    print_json(_as_json(message))
    sys.stdout.flush()


def _print_payload(message: "Message") -> None:
    if sys.stdout.isatty():
        print(printable(message.payload.decode("utf-8", "backslashreplace")))
    else:
        # A program reads the pipe: bytes verbatim, one message per line.
        sys.stdout.buffer.write(message.payload + b"\n")
    sys.stdout.flush()


def _as_json(message: "Message") -> dict[str, object]:
    shown: dict[str, object] = {
        "topic": message.topic,
        "offset": message.id,
        "qos": message.qos,
    }
    if message.headers:
        shown["headers"] = dict(message.headers)
    if message.timestamp is not None:
        shown["timestamp"] = message.timestamp.isoformat()
    if message.attempt is not None:
        shown["attempt"] = message.attempt
    if message.sender is not None:
        shown["sender"] = message.sender.hex()
        shown["sealed_by_gateway"] = message.sealed_by_gateway
    if message.schema:
        shown["schema"] = message.schema
    return shown | payload_as_json(message.payload)
