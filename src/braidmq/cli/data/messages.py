"""`braidmq publish` and `braidmq subscribe`, on the client library."""

import asyncio
import os
import sys
from collections.abc import Iterable
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
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Publish a message, and wait until it is safe on disk.

    The scheme of --url chooses the protocol: blip:// by default, vibe:// for queues, headers
    and priorities, qumbed:// for encryption.
    """
    payloads = repeat(_payload(payload), count)
    asyncio.run(_publish(_url(url), topic, payloads, sending, qumbed))
    done = {"topic": topic, "count": count, "qos": sending.qos}
    print_done(done, f"published {count} to {printable(topic)}", as_json=as_json)


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
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Print the messages of a topic as they arrive, until Ctrl-C.

    Only messages published from now on are printed, except on Vibe, where those waiting in the
    queue come first. The subscription is removed on exit.
    """
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
            await _print_messages(messages, count, as_json=as_json)

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


async def _publish(
    url: str, topic: str, payloads: Iterable[bytes], sending: Sending, qumbed: OverQumbed
) -> None:
    import braidmq
    from braidmq.client.errors import PublishError

    headers = dict(map(_header, sending.header)) if sending.header else None
    options: dict[str, Any] = {
        "qos": sending.qos,
        "recipient": sending.recipient,
        "envelope": sending.envelope,
        "schema": qumbed.schema,
    }
    async with braidmq.connect(url, **qumbed.choices()) as client:
        if headers is None and sending.priority is None:
            for result in await client.publish_many(topic, payloads, **options):
                if isinstance(result, PublishError):
                    raise result
            return
        for payload in payloads:
            await client.publish(
                topic, payload, headers=headers, priority=sending.priority, **options
            )


async def _print_messages(
    messages: "Subscription", count: int | None, *, as_json: bool
) -> None:
    printed = 0
    async for message in messages:
        # Acknowledged after printing: if printing fails, the message is redelivered.
        async with message.process():
            _print_message(message, as_json=as_json)
        printed += 1
        if printed == count:
            return


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print_message(message: "Message", *, as_json: bool) -> None:
    if as_json:
        print_json(_as_json(message))
    elif sys.stdout.isatty():
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
    if message.attempt is not None:
        shown["attempt"] = message.attempt
    if message.sender is not None:
        shown["sender"] = message.sender.hex()
        shown["sealed_by_gateway"] = message.sealed_by_gateway
    if message.schema:
        shown["schema"] = message.schema
    return shown | payload_as_json(message.payload)
