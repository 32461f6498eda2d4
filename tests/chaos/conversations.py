"""Valid conversations with every listener as bytes, and what a fuzzer makes of them. Pure."""

import struct
from random import Random
from typing import Final

from nacl.public import PrivateKey

from tests.integration.blip import peer as blip
from tests.integration.qumbed import peer as qumbed
from tests.integration.vibe import peer as vibe

_EXTREMES: Final = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x7FFF_FFFF,
    0x8000_0000,
    0xFFFF_FFFF,
)
_NOISE_BYTES_MAX: Final = 300

Conversation = list[bytes]


def blip_conversation() -> Conversation:
    """Every request of Blip; the ids are likely ones, not those that the broker gave."""
    return [
        blip.hello(),
        blip.auth(),
        blip.subscribe(3, "fuzz"),
        *(blip.publish(4 + n, "fuzz", b"x" * n * 50, qos=n % 2) for n in range(6)),
        blip.ping(10, b"fence"),
        *(blip.poll(11 + n, 1 + n) for n in range(4)),
        blip.credit(16, 1, 3),
        blip.ack(17, 1),
        blip.unsubscribe(18, 1),
        blip.ping(19),
    ]


def vibe_conversation(dialect: str) -> Conversation:
    """Every command of Vibe, users among them, in one dialect."""

    def said(kind: int, queue: str = "", payload: bytes = b"", **headers: str) -> bytes:
        made = vibe.body(
            kind, f"id-{kind}", queue, payload, headers, errors=dialect == vibe.V1_0
        )
        return vibe.frame(dialect, made)

    connect = vibe.body(vibe.CONNECT, "c", headers=vibe.TOKEN, errors=dialect == vibe.V1_0)
    commands = [
        vibe.frame(dialect, connect),
        said(vibe.CREATE_QUEUE, "fuzz-q", mode="PriorityBased", maxQueueSize="10"),
        said(vibe.SUBSCRIBE, "fuzz-q", prefetch="5"),
        *(said(vibe.PUBLISH, "fuzz-q", b'{"n": %d}' % n, priority="High") for n in range(4)),
        said(vibe.ACK, "fuzz-q"),
        said(vibe.QUEUE_INFO, "fuzz-q"),
        said(vibe.LIST_QUEUES),
        *(
            said(kind, "", b'{"username": "fuzz", "password": "fuzzfuzz"}')
            for kind in range(50, 57)
        ),
        said(vibe.UNSUBSCRIBE, "fuzz-q"),
        said(vibe.DELETE_QUEUE, "fuzz-q"),
        said(vibe.PING),
        said(vibe.DISCONNECT),
    ]
    if dialect == vibe.V1_1:
        made = vibe.body(vibe.PUBLISH, "z", "fuzz-q", b'"' + b"z" * 5000 + b'"')
        commands[3:3] = [vibe.packed(vibe.GZIP, made), vibe.packed(vibe.BROTLI, made)]
    return commands


def qumbed_conversation() -> Conversation:
    """The frames of one stream."""
    key = bytes(PrivateKey(bytes(range(1, 33))).public_key)
    return [
        qumbed.discovery(frame_id="1"),
        qumbed.publish("fuzz", b"x" * 80, frame_id="2", recipient=key[:8], sender=key),
        qumbed.publish("fuzz", b"{}", "sensor.Temperature", frame_id="3"),
        qumbed.subscribe("fuzz", key, frame_id="4"),
        qumbed.unsubscribe("fuzz", frame_id="5"),
    ]


def http_conversation() -> Conversation:
    """Requests of every kind, one after the other on a connection."""
    head = b"Host: 127.0.0.1\r\nAuthorization: Bearer dev-key\r\n"
    body = b'{"payload": {"n": 1}, "headers": {"k": "v"}}'
    posted = head + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body)
    paths = (b"/", b"/metrics", b"/readyz", b"/api/overview", b"/api/topics?limit=1&after=")
    return [
        *(b"GET %s HTTP/1.1\r\n%s\r\n" % (path, head) for path in paths),
        b"POST /api/topics/fuzz/messages HTTP/1.1\r\n" + posted + body,
        b"POST /api/topics/fuzz/messages HTTP/1.1\r\n" + chunked + body + b"\r\n0\r\n\r\n",
        b"GET /api/topics/fuzz/messages?from=0&limit=5&time= HTTP/1.1\r\n%s\r\n" % head,
        b"DELETE /api/queues/none HTTP/1.1\r\n%s\r\n" % head,
        b"GET /api/events HTTP/1.1\r\n%s\r\n" % head,
    ]


def mutated(rng: Random, conversation: Conversation) -> Conversation:
    """Return the conversation with a few faults in it, cut at any place."""
    parts = list(conversation)
    for _ in range(rng.randint(0, 4)):
        _mutate(rng, parts)
    data = b"".join(parts)
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 1, 3, 20))))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return [piece for piece in pieces if piece]


def noise(rng: Random) -> Conversation:
    """Return bytes that mean nothing."""
    return [rng.randbytes(rng.randint(1, _NOISE_BYTES_MAX)) for _ in range(rng.randint(1, 3))]


def _mutate(rng: Random, parts: Conversation) -> None:
    at = rng.randrange(len(parts))
    part = bytearray(parts[at])
    where = rng.randrange(len(part) + 1)
    until = min(len(part), where + rng.randint(1, 12))
    kind = rng.randrange(9)
    if kind == 0 and where < len(part):
        part[where] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del part[where:until]
    elif kind == 2:
        part[where:where] = part[where:until]
    elif kind == 3:
        part[where:where] = rng.randbytes(rng.randint(1, 16))
    elif kind == 4:
        number = rng.choice(_EXTREMES)
        size = rng.choice((2, 4))
        raw = struct.pack(rng.choice(("<", ">")) + "I", number)
        part[where : where + size] = raw[-size:]
    elif kind == 5:
        parts.insert(rng.randrange(len(parts) + 1), bytes(part))
        return
    elif kind == 6 and len(parts) > 1:
        del parts[at]
        return
    elif kind == 7:
        part[:4] = struct.pack(">I", rng.choice(_EXTREMES))  # where frames have their length
    else:
        parts.reverse() if rng.random() < 0.1 else rng.shuffle(parts)
        return
    parts[at] = bytes(part)
