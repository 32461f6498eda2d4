"""What can be chosen about a client, with defaults; all times are seconds."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TypedDict

from braidmq.client.errors import ConnectionLost, InvalidArgument

Callback = Callable[..., object]
"""A plain function or a coroutine function; it never runs inside the reading of a socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The choices that :func:`braidmq.connect` takes."""

    tls: ssl.SSLContext | None = None
    """TLS with this context; None: plain for `blip://`, the system's trust for `blips://`."""

    connect_timeout: float = 10.0
    """One attempt to connect, TLS and authentication included."""

    answer_timeout: float = 30.0
    """A broker that owes an answer and is silent for so long is taken for dead."""

    offline_timeout: float = 30.0
    """How long a call waits for a connection while there is none."""

    keepalive: float = 20.0
    """An idle connection is tried with a PING after so long."""

    close_timeout: float = 5.0
    """How long closing waits for the broker to confirm what was sent."""

    reconnect: bool = True
    """Whether a broken connection is made again; if not, its loss is the end."""

    reconnect_delay: float = 0.05
    """Before the first attempt to connect again; doubles with each attempt, with jitter."""

    reconnect_delay_max: float = 5.0
    """What that delay grows to."""

    compression: bool = False
    """Offer brotli and gzip to a broker that can compress (Vibe), for bodies from 1 KiB on."""

    on_disconnect: Callable[[ConnectionLost], object] | None = None
    """Called when the first of the client's connections breaks."""

    on_reconnect: Callable[[], object] | None = None
    """Called when all of the client's connections are there again."""

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if isinstance(value, float | int) and not isinstance(value, bool) and value <= 0:
                raise InvalidArgument(f"{option.name} is seconds above 0, not {value}")


class Choices(TypedDict, total=False):
    """The names of :class:`Options`, for those who pass them on."""

    tls: ssl.SSLContext | None
    connect_timeout: float
    answer_timeout: float
    offline_timeout: float
    keepalive: float
    close_timeout: float
    reconnect: bool
    reconnect_delay: float
    reconnect_delay_max: float
    compression: bool
    on_disconnect: Callable[[ConnectionLost], object] | None
    on_reconnect: Callable[[], object] | None
