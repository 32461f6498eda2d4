"""Queues: requests to declare, inspect, list and delete them, and the answers as values."""

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, cast

from braidmq.client.answers import QueueInfo
from braidmq.client.errors import ClientError, InvalidArgument, QueueRefused
from braidmq.client.link import Link
from braidmq.client.options import DeliveryMode, Overflow, QueueOptions
from braidmq.client.vibe.connection import VibeConnection, asking
from braidmq.client.vibe.publishing import check_queue
from braidmq.wire.vibe import messages
from braidmq.wire.vibe.queue_options import MODES, STRATEGIES, TTL_MS_MAX, parse_timespan
from braidmq.wire.vibe.session import QUEUE_NOT_FOUND

_MS_PER_S: Final = 1000


class VibeQueues:
    """The queues of the broker that *link* leads to."""

    def __init__(self, link: Link[VibeConnection]) -> None:
        self._link = link

    async def declare(self, name: str, options: QueueOptions) -> QueueInfo:
        """Create a queue unless it exists; return it as it is now."""
        await self._manage(messages.CREATE_QUEUE, name, declaration(options))
        info = await self.info(name)
        if info is None:
            raise QueueRefused(name, QUEUE_NOT_FOUND, "it was deleted meanwhile")
        return info

    async def info(self, name: str) -> QueueInfo | None:
        """Return what the broker says about a queue; None if there is no such queue."""
        payload = await self._manage(messages.QUEUE_INFO, name)
        return read_info(payload) if payload else None

    async def names(self) -> list[str]:
        """Return the names of the queues that these credentials may see."""
        return read_names(await self._ask(messages.LIST_QUEUES, ""))

    async def delete(self, name: str) -> None:
        """Delete a queue and all messages in it; its dead letters stay."""
        await self._manage(messages.DELETE_QUEUE, name)

    async def _manage(
        self, kind: int, name: str, headers: dict[str, str] | None = None
    ) -> bytes:
        check_queue(name)
        return await self._ask(kind, name, headers)

    async def _ask(self, kind: int, name: str, headers: dict[str, str] | None = None) -> bytes:
        connection = await self._link.ready()
        answer = await connection.ask(
            asking(kind, name, headers),
            lambda refusal: QueueRefused(name, str(refusal.code), refusal.text),
        )
        return answer.payload


def declaration(options: QueueOptions) -> dict[str, str]:
    """Return the headers of a CreateQueue that asks for *options*.

    Raises:
        InvalidArgument: An option is invalid.
    """
    headers: dict[str, str] = {}
    if options.mode is not None:
        headers["deliveryMode"] = _name("mode", options.mode, MODES)
    if options.max_size is not None:
        headers["maxQueueSize"] = _count("max_size", options.max_size)
    if options.ttl is not None:
        headers["messageTtl"] = _milliseconds(options.ttl)
    if options.dead_letters is not None:
        headers["enableDeadLetterQueue"] = str(options.dead_letters).lower()
    if options.dead_letter_name is not None:
        check_queue(options.dead_letter_name)
        headers["deadLetterQueueName"] = options.dead_letter_name
    if options.overflow is not None:
        headers["overflowStrategy"] = _name("overflow", options.overflow, STRATEGIES)
    if options.max_attempts is not None:
        headers["maxRetryAttempts"] = _count("max_attempts", options.max_attempts)
    if options.durable is not None:
        headers["durable"] = str(options.durable).lower()
    return headers


def read_info(payload: bytes) -> QueueInfo:
    """Return what the payload of a QueueInfo says.

    Raises:
        ClientError: It is not a description of a queue.
    """
    # Lenient on purpose: dialects spell modes as numbers or names, and a TTL as a time span or
    # in milliseconds, and other brokers leave fields out.
    try:
        said: dict[str, Any] = json.loads(payload)
        return QueueInfo(
            name=said["name"],
            waiting=int(said["messageCount"]),
            in_flight=int(said.get("inFlight", 0)),
            subscribers=int(said["subscriberCount"]),
            mode=cast("DeliveryMode", _of_names(said["deliveryMode"], MODES)),
            max_size=int(said.get("maxSize") or 0) or None,
            ttl=_seconds(said.get("messageTtl")),
            dead_letters=bool(said.get("enableDeadLetterQueue", False)),
            dead_letter_name=said.get("deadLetterQueueName") or None,
            overflow=cast("Overflow", _of_names(said.get("overflowStrategy", 0), STRATEGIES)),
            max_attempts=int(said.get("maxRetryAttempts", 0)),
            durable=bool(said.get("durable", True)),
            created=_instant(said.get("createdAt")),
        )
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
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
    for name in names:
        if _is(given, name):
            return name
    raise InvalidArgument(f"{option} is one of {', '.join(names)}, not {given!r}")


def _is(spelled: str, name: str) -> bool:
    return re.sub("[_-]", "", spelled).lower() == name.lower()


def _count(option: str, given: int) -> str:
    if given < 1:
        raise InvalidArgument(f"{option} must be at least 1, not {given}")
    return str(given)


def _milliseconds(ttl: float) -> str:
    exact_ms = ttl * _MS_PER_S
    # Compared before it is rounded: NaN and infinity cannot be.
    ms = round(exact_ms) if 0 < exact_ms <= TTL_MS_MAX else 0
    if ms < 1:
        most = f"at most {TTL_MS_MAX // _MS_PER_S}"
        raise InvalidArgument(f"ttl must be more than 0 seconds and {most}, not {ttl}")
    return str(ms)


def _of_names(said: str | int, names: Sequence[str]) -> str:
    """Return one of *names*, which the literal types of QueueInfo list."""
    if isinstance(said, int):
        return names[said]
    for name in names:
        if _is(said, name):
            return name
    raise ValueError(said)


def _seconds(said: str | int | None) -> float | None:
    if said is None:
        return None
    ms = parse_timespan(said) if isinstance(said, str) else said
    return ms / _MS_PER_S if ms else None


def _instant(said: str | None) -> datetime | None:
    return None if said is None else datetime.fromisoformat(said)
