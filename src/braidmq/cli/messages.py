"""`braidmq publish` and `braidmq subscribe`: messages by hand, through the client library."""

import asyncio
import base64
import json
import os
import sys
from itertools import repeat
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from braidmq.base.errors import ConfigError
from braidmq.base.limits import MESSAGE_BYTES_MAX
from braidmq.cli.config import AsJson
from braidmq.cli.tables import print_json, printable

if TYPE_CHECKING:  # the client library is not needed to print --help
    from braidmq.client.messages import Message

DEFAULT_URL: Final = "blip://dev-key@127.0.0.1:5555"
"""The broker of `braidmq serve --dev`."""

Url = Annotated[
    str | None,
    typer.Option(metavar="URL", help="blip://KEY@HOST:PORT; also BRAIDMQ_URL, out of sight."),
]
Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
Qos = Annotated[int, typer.Option(min=0, max=1, help="1: durable; 0: memory only.")]


def publish(
    topic: Topic,
    payload: Annotated[
        str, typer.Argument(metavar="[PAYLOAD|-]", help="Text, or - for standard input.")
    ] = "",
    *,
    qos: Qos = 1,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="May be repeated.")
    ] = None,
    priority: Annotated[int | None, typer.Option(help="Where the strand has it.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Publish it so often.")] = 1,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Publish a message, and return when it is durable."""
    asyncio.run(
        _publish(
            _url(url),
            topic,
            _payload(payload),
            count=count,
            qos=qos,
            headers=dict(map(_header, header)) if header else None,
            priority=priority,
        )
    )
    if as_json:
        print_json({"topic": topic, "count": count, "qos": qos})
    else:
        print(f"published {count} to {printable(topic)}")


def subscribe(
    topic: Topic,
    *,
    count: Annotated[int | None, typer.Option(min=1, help="End after so many.")] = None,
    qos: Qos = 1,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Print the messages of a topic as they come, until Ctrl-C."""
    asyncio.run(_subscribe(_url(url), topic, qos=qos, count=count, as_json=as_json))


def _url(url: str | None) -> str:
    return url or os.environ.get("BRAIDMQ_URL") or DEFAULT_URL


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError("--header", "must be NAME=VALUE")
    return name, value


def _payload(argument: str) -> bytes:
    # What the shell passes is bytes; they go out as they came in.
    payload = os.fsencode(argument)
    if argument == "-":
        payload = sys.stdin.buffer.read(MESSAGE_BYTES_MAX + 1)
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
) -> None:
    import braidmq
    from braidmq.client.errors import PublishError

    async with braidmq.connect(url) as client:
        if headers is None and priority is None:
            results = await client.publish_many(topic, repeat(payload, count), qos=qos)
            for result in results:
                if isinstance(result, PublishError):
                    raise result
            return
        for _ in range(count):
            await client.publish(topic, payload, qos=qos, headers=headers, priority=priority)


async def _subscribe(
    url: str, topic: str, *, qos: int, count: int | None, as_json: bool
) -> None:
    import braidmq

    async with (
        braidmq.connect(url) as client,
        client.subscribe(topic, qos=qos) as messages,
    ):
        printed = 0
        async for message in messages:
            # Acknowledged once it is out; a message that nobody could see comes again.
            async with message.process():
                _print_message(message, as_json=as_json)
            printed += 1
            if printed == count:
                return


def _print_message(message: "Message", *, as_json: bool) -> None:
    if as_json:
        print_json(_as_json(message))
    elif sys.stdout.isatty():
        print(printable(message.payload.decode("utf-8", "backslashreplace")))
    else:
        # In a pipe the bytes are for a program: verbatim, one message a line.
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
    return shown | payload_as_json(message.payload)


def payload_as_json(payload: bytes) -> dict[str, object]:
    """Return `payload`, as JSON when it is JSON and else as text, or `payload_base64`."""
    try:
        return {"payload": json.loads(payload, parse_constant=_not_json)}
    except (ValueError, RecursionError):
        try:
            return {"payload": payload.decode("utf-8")}
        except UnicodeDecodeError:
            return {"payload_base64": base64.b64encode(payload).decode("ascii")}


def _not_json(constant: str) -> NoReturn:
    # Python's parser takes NaN and Infinity; the readers of our lines need not.
    raise ValueError(constant)
