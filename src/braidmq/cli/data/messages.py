"""`braidmq publish` and `braidmq subscribe`, on the client library."""

import asyncio
import os
import sys
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from braidmq.base.errors import ConfigError
from braidmq.base.limits import MESSAGE_BYTES_MAX
from braidmq.cli.broker.config import AsJson
from braidmq.cli.completion import topic_names
from braidmq.cli.exact_json import payload_as_json
from braidmq.cli.signals import run_until_ended
from braidmq.cli.strand_address import strand_address
from braidmq.cli.tables import print_json, printable

if TYPE_CHECKING:  # the client library is not needed to print --help
    from braidmq.client.deliveries import Message
    from braidmq.client.options import Choices

DEFAULT_URL: Final = "blip://dev-key@127.0.0.1:5555"
"""The broker of `braidmq serve --dev`."""

Url = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Broker's address: blip://, vibe:// or qumbed://KEY@HOST:PORT, or http:// to look "
        "up Blip's; also BRAIDMQ_URL, which keeps the key off the command line.",
    ),
]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=topic_names)]
Qos = Annotated[int, typer.Option(min=0, max=1, help="1: durable; 0: in memory only.")]
SchemaId = Annotated[
    str, typer.Option(metavar="ID", help="Schema that payloads must match (Qumbed).")
]
PrivateKey = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Private key written by `keygen`; default: a new one (Qumbed)."
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="CA certificates to verify the broker with (Qumbed)."),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Accept any certificate (Qumbed).")]

_NO_PAYLOAD: Final = "is missing; give a text, '' for an empty message, or pipe it in"


def publish(
    topic: Topic,
    payload: Annotated[
        str | None,
        typer.Argument(
            metavar="PAYLOAD|-",
            help="Text to publish; - or nothing reads standard input.",
            show_default=False,
        ),
    ] = None,
    *,
    qos: Qos = 1,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Header to send; may be repeated (Vibe)."),
    ] = None,
    priority: Annotated[
        int | None, typer.Option(help="Priority of the message (Vibe).")
    ] = None,
    recipient: Annotated[
        str | None,
        typer.Option(metavar="HEX", help="Encrypt the payload for this public key (Qumbed)."),
    ] = None,
    envelope: Annotated[
        bool,
        typer.Option(
            "--envelope",
            help="Encrypt topic, sequence number and time with the payload (Qumbed).",
        ),
    ] = False,
    schema: SchemaId = "",
    private_key: PrivateKey = None,
    ca_file: CaFile = None,
    insecure: Insecure = False,
    count: Annotated[int, typer.Option(min=1, help="Publish the message this many times.")] = 1,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Publish a message and wait until it is durable."""
    asyncio.run(
        _publish(
            _url(url),
            topic,
            _payload(payload),
            count=count,
            qos=qos,
            headers=dict(map(_header, header)) if header else None,
            priority=priority,
            recipient=recipient,
            envelope=envelope,
            schema=schema,
            options=_options(private_key, ca_file, insecure=insecure),
        )
    )
    if as_json:
        print_json({"topic": topic, "count": count, "qos": qos})
    else:
        print(f"published {count} to {printable(topic)}")


def subscribe(
    topic: Topic,
    *,
    count: Annotated[
        int | None, typer.Option(min=1, help="Exit after this many messages.")
    ] = None,
    qos: Qos = 1,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HEX",
            help="Accept only messages from this public key; may be repeated (Qumbed).",
        ),
    ] = None,
    envelope: Annotated[
        bool, typer.Option("--envelope", help="Refuse messages without an envelope (Qumbed).")
    ] = False,
    schema: SchemaId = "",
    private_key: PrivateKey = None,
    ca_file: CaFile = None,
    insecure: Insecure = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Print the messages of a topic as they arrive, until Ctrl-C or SIGTERM.

    Only messages published from now on are printed, except on Vibe, where those waiting in the
    queue come first. The subscription is removed on exit.
    """
    run_until_ended(
        _subscribe(
            _url(url),
            topic,
            qos=qos,
            count=count,
            envelope=envelope,
            schema=schema,
            options=_options(private_key, ca_file, insecure=insecure, trust=trust),
            as_json=as_json,
        )
    )


def _url(url: str | None) -> str:
    return strand_address(url or os.environ.get("BRAIDMQ_URL") or DEFAULT_URL)


def _options(
    private_key: Path | None,
    ca_file: Path | None,
    *,
    insecure: bool,
    trust: list[str] | None = None,
) -> "Choices":
    return {
        "private_key": private_key,
        "ca_file": ca_file,
        "insecure": insecure,
        "trust": trust or None,
    }


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
    url: str,
    topic: str,
    payload: bytes,
    *,
    count: int,
    qos: int,
    headers: dict[str, str] | None,
    priority: int | None,
    recipient: str | None,
    envelope: bool,
    schema: str,
    options: "Choices",
) -> None:
    import braidmq
    from braidmq.client.errors import PublishError

    async with braidmq.connect(url, **options) as client:
        if headers is None and priority is None:
            results = await client.publish_many(
                topic,
                repeat(payload, count),
                qos=qos,
                recipient=recipient,
                envelope=envelope,
                schema=schema,
            )
            for result in results:
                if isinstance(result, PublishError):
                    raise result
            return
        for _ in range(count):
            await client.publish(
                topic,
                payload,
                qos=qos,
                headers=headers,
                priority=priority,
                recipient=recipient,
                envelope=envelope,
                schema=schema,
            )


async def _subscribe(
    url: str,
    topic: str,
    *,
    qos: int,
    count: int | None,
    envelope: bool,
    schema: str,
    options: "Choices",
    as_json: bool,
) -> None:
    import braidmq

    options["on_reconnect"] = lambda: _note("reconnected")
    async with (
        braidmq.connect(url, **options) as client,
        client.subscribe(topic, qos=qos, envelope=envelope, schema=schema) as messages,
    ):
        if sys.stderr.isatty():
            _note(f"waiting for messages on {printable(topic)}; press Ctrl-C to stop")
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
