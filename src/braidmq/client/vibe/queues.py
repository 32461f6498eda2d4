"""Queues as the client declares and reads them: options into headers, answers into values.

It sends nothing.
"""

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from braidmq.client.deliveries import QueueInfo
from braidmq.client.errors import ClientError, InvalidArgument
from braidmq.client.vibe.publishing import check_queue
from braidmq.wire.vibe.queue_options import MODES, STRATEGIES, parse_timespan

_MS_PER_S: Final = 1000


def declaration(
    *,
    mode: str | None,
    max_size: int | None,
    ttl: float | None,
    dead_letters: bool | None,
    dead_letter_name: str | None,
    overflow: str | None,
    max_attempts: int | None,
    durable: bool | None,
) -> dict[str, str]:
    """Return the headers of a CreateQueue that asks for what is given.

    Raises:
        InvalidArgument: An option cannot be used.
    """
    headers: dict[str, str] = {}
    if mode is not None:
        headers["deliveryMode"] = _name("mode", mode, MODES)
    if max_size is not None:
        headers["maxQueueSize"] = _count("max_size", max_size)
    if ttl is not None:
        headers["messageTtl"] = _milliseconds(ttl)
    if dead_letters is not None:
        headers["enableDeadLetterQueue"] = str(dead_letters).lower()
    if dead_letter_name is not None:
        check_queue(dead_letter_name)
        headers["deadLetterQueueName"] = dead_letter_name
    if overflow is not None:
        headers["overflowStrategy"] = _name("overflow", overflow, STRATEGIES)
    if max_attempts is not None:
        headers["maxRetryAttempts"] = _count("max_attempts", max_attempts)
    if durable is not None:
        headers["durable"] = str(durable).lower()
    return headers


def read_info(payload: bytes) -> QueueInfo:
    """Return what the payload of a QueueInfo says.

    Raises:
        ClientError: It is not what a broker says about a queue.
    """
    try:
        said: dict[str, Any] = json.loads(payload)
        return QueueInfo(
            name=said["name"],
            waiting=int(said["messageCount"]),
            in_flight=int(said.get("inFlight", 0)),
            subscribers=int(said["subscriberCount"]),
            mode=_of_names(said["deliveryMode"], MODES),
            max_size=int(said.get("maxSize") or 0) or None,
            ttl=_seconds(said.get("messageTtl")),
            dead_letters=bool(said.get("enableDeadLetterQueue", False)),
            dead_letter_name=said.get("deadLetterQueueName") or None,
            overflow=_of_names(said.get("overflowStrategy", 0), STRATEGIES),
            max_attempts=int(said.get("maxRetryAttempts", 0)),
            durable=bool(said.get("durable", True)),
            created=_instant(said.get("createdAt")),
        )
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ClientError("the broker's answer about a queue cannot be read") from error


def read_names(payload: bytes) -> list[str]:
    """Return what the payload of a ListQueues says.

    Raises:
        ClientError: It is not a list of names.
    """
    try:
        names = json.loads(payload or b"[]")
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ClientError("the broker's list of queues cannot be read")
    return names


def _name(option: str, given: str, names: Sequence[str]) -> str:
    plain = re.sub("[_-]", "", given).lower()
    for name in names:
        if name.lower() == plain:
            return name
    raise InvalidArgument(f"{option} is one of {', '.join(names)}, not {given!r}")


def _count(option: str, given: int) -> str:
    if given < 1:
        raise InvalidArgument(f"{option} is at least 1, not {given}")
    return str(given)


def _milliseconds(ttl: float) -> str:
    ms = round(ttl * _MS_PER_S)
    if ms < 1:
        raise InvalidArgument(f"ttl is seconds above 0, not {ttl}")
    return str(ms)


def _of_names(said: str | int, names: Sequence[str]) -> str:
    return names[said] if isinstance(said, int) else said


def _seconds(said: str | int | None) -> float | None:
    if said is None:
        return None
    ms = parse_timespan(said) if isinstance(said, str) else said
    return ms / _MS_PER_S if ms else None


def _instant(said: str | None) -> datetime | None:
    return None if said is None else datetime.fromisoformat(said)
