"""Forged boxes: not one of ten thousand opens.

The attacker is a relay: it has seen every box that was sent, and has no key. A fixed seed
determines every box and every change, so that a forgery that opened could be reproduced.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Final

import pytest

from braidmq.client.errors import NotOpened
from braidmq.client.qumbed.boxes import KeyPair
from braidmq.client.qumbed.envelope import Opener
from braidmq.wire.qumbed.boxes import NONCE_BYTES, OVERHEAD_BYTES, Boxes
from braidmq.wire.qumbed.envelopes import Envelope, write_envelope
from tests.unit.client.qumbed.people import ALICE, BOB, EVE, MUTATIONS, mutated

SEED: Final = 40
TOPIC: Final = "sensors/temp"
SCHEMA: Final = "sensor.Temperature"
NOW_MS: Final = 1_700_000_000_000

BOXES: Final = 800
"""Fewer than a replay window holds, so that all can be accepted in the end."""

ROUTES: Final = ((ALICE, BOB), (ALICE, BOB), (BOB, ALICE), (EVE, BOB))

Tamper = Callable[[bytes, bytes, Random], bytes]
"""Turn a box, another one of the same size, and random numbers into a forgery."""


SEALING: Final = {
    pair: Boxes(pair.reveal_private_key(), boxes_max=2) for pair in (ALICE, BOB, EVE)
}


def seal(sender: KeyPair, recipient: KeyPair, plaintext: bytes, rng: Random) -> bytes:
    """Seal with a nonce from the seed; the key pairs themselves use random nonces."""
    nonce = rng.randbytes(NONCE_BYTES)
    return SEALING[sender].seal(plaintext, recipient.public_key, nonce=nonce)


def bits_flipped(sealed: bytes, _: bytes, rng: Random) -> bytes:
    data = bytearray(sealed)
    for bit in rng.sample(range(8 * len(data)), rng.randint(1, 8)):
        data[bit // 8] ^= 1 << bit % 8
    return bytes(data)


def end_cut_off(sealed: bytes, _: bytes, rng: Random) -> bytes:
    return sealed[: rng.randrange(len(sealed))]


def beginning_cut_off(sealed: bytes, _: bytes, rng: Random) -> bytes:
    return sealed[rng.randrange(1, len(sealed)) :]


def extended(sealed: bytes, _: bytes, rng: Random) -> bytes:
    return sealed + rng.choice((bytes, rng.randbytes))(rng.randint(1, 64))


def extended_in_front(sealed: bytes, _: bytes, rng: Random) -> bytes:
    return rng.randbytes(rng.randint(1, 64)) + sealed


def followed_by_another(sealed: bytes, other: bytes, rng: Random) -> bytes:
    return sealed + other[rng.randrange(len(other)) :]


def nonce_of_another(sealed: bytes, other: bytes, _: Random) -> bytes:
    return other[:NONCE_BYTES] + sealed[NONCE_BYTES:]


def nonce_made_up(sealed: bytes, _: bytes, rng: Random) -> bytes:
    return rng.choice((bytes, rng.randbytes))(NONCE_BYTES) + sealed[NONCE_BYTES:]


def nonce_rotated(sealed: bytes, _: bytes, rng: Random) -> bytes:
    by = rng.randrange(1, NONCE_BYTES)
    return sealed[by:NONCE_BYTES] + sealed[:by] + sealed[NONCE_BYTES:]


def tag_of_another(sealed: bytes, other: bytes, _: Random) -> bytes:
    return sealed[:NONCE_BYTES] + other[NONCE_BYTES:OVERHEAD_BYTES] + sealed[OVERHEAD_BYTES:]


def spliced(sealed: bytes, other: bytes, rng: Random) -> bytes:
    at = rng.randrange(1, len(sealed))
    return sealed[:at] + other[at:]


def middle_of_another(sealed: bytes, other: bytes, rng: Random) -> bytes:
    start, end = sorted(rng.sample(range(len(sealed) + 1), 2))
    return sealed[:start] + other[start:end] + sealed[end:]


def bytes_swapped(sealed: bytes, _: bytes, rng: Random) -> bytes:
    data = bytearray(sealed)
    one, two = rng.sample(range(len(data)), 2)
    data[one], data[two] = data[two], data[one]
    return bytes(data)


def part_blanked(sealed: bytes, _: bytes, rng: Random) -> bytes:
    start, end = sorted(rng.sample(range(len(sealed) + 1), 2))
    return sealed[:start] + bytes(end - start) + sealed[end:]


def mutated_once(sealed: bytes, _: bytes, rng: Random) -> bytes:
    return mutated(sealed, rng)


TAMPERS: Final[tuple[Tamper, ...]] = (
    bits_flipped,
    end_cut_off,
    beginning_cut_off,
    extended,
    extended_in_front,
    followed_by_another,
    nonce_of_another,
    nonce_made_up,
    nonce_rotated,
    tag_of_another,
    spliced,
    middle_of_another,
    bytes_swapped,
    part_blanked,
    mutated_once,
)


class Traffic:
    """What a relay has seen: boxes of one size between Alice and Bob, and from Eve to Bob."""

    def __init__(self, plaintext: Callable[[KeyPair, int], bytes]) -> None:
        self.rng = Random(SEED)
        self.sent: list[tuple[int, bytes]] = []  # by Alice to Bob
        self.boxes: list[bytes] = []
        for number in range(BOXES):
            sender, recipient = ROUTES[number % len(ROUTES)]
            box = seal(sender, recipient, plaintext(sender, number), self.rng)
            self.boxes.append(box)
            if sender is ALICE:
                self.sent.append((number, box))
        assert 1 == len({len(box) for box in self.boxes})

    def forged(self, count: int) -> Iterator[tuple[str, bytes]]:
        """Yield *count* different forgeries, equally many of each kind."""
        known = set(self.boxes)
        for number in range(count):
            tamper = TAMPERS[number % len(TAMPERS)]
            box = self.boxes[0]
            while box in known:  # a change may be void, such as swapping equal bytes
                _, sealed = self.rng.choice(self.sent)
                box = tamper(sealed, self.rng.choice(self.boxes), self.rng)
            known.add(box)
            yield tamper.__name__, box


def payload(_: KeyPair, number: int) -> bytes:
    return b'{"celsius": 22.5, "timestamp_ms": %d, "sensor_id": "kitchen"}' % (NOW_MS + number)


def envelope(sender: KeyPair, number: int) -> bytes:
    """Return the bytes of an envelope that its recipient would accept."""
    return write_envelope(
        Envelope(
            sender.public_key,
            number,
            NOW_MS,
            TOPIC.encode(),
            SCHEMA.encode(),
            payload(sender, number),
        )
    )


def assert_all_kinds(tried: Counter[str]) -> None:
    assert MUTATIONS == tried.total()
    assert len(TAMPERS) == len(tried)
    assert min(tried.values()) >= MUTATIONS // len(TAMPERS)


def test_no_forged_payload_opens() -> None:
    """Every forgery raises NotOpened; the genuine boxes still open."""
    traffic = Traffic(payload)
    tried: Counter[str] = Counter()
    opened = []
    for kind, box in traffic.forged(MUTATIONS):
        tried[kind] += 1
        with suppress(NotOpened):
            opened.append((kind, box.hex(), BOB.open(box, ALICE.public_key)))

    assert [] == opened
    assert_all_kinds(tried)
    for number, box in traffic.sent:
        assert payload(ALICE, number) == BOB.open(box, ALICE.public_key)


@pytest.mark.parametrize("required", [False, True])
def test_no_forged_message_is_accepted(required: bool) -> None:
    """Forgeries use up no sequence number: all of Alice's messages are accepted afterwards."""
    traffic = Traffic(envelope)
    opener = Opener(BOB, trust=None, required=required)
    tried: Counter[str] = Counter()
    taken = []
    for kind, box in traffic.forged(MUTATIONS):
        tried[kind] += 1
        with suppress(NotOpened):
            message = opener.open(box, ALICE.public_key, topic=TOPIC, schema_id=SCHEMA)
            taken.append((kind, box.hex(), message))

    assert [] == taken
    assert_all_kinds(tried)
    for number, box in traffic.sent:
        message = opener.open(box, ALICE.public_key, topic=TOPIC, schema_id=SCHEMA)
        assert (number, payload(ALICE, number)) == (message.sequence, message.payload)


def test_a_forgery_opens_for_no_pair_of_keys() -> None:
    """Whichever of the known public keys the relay claims as its sender."""
    traffic = Traffic(payload)
    opened = []
    for kind, box in traffic.forged(MUTATIONS // 10):
        for keys, sender in ((BOB, EVE), (ALICE, BOB), (ALICE, EVE), (EVE, ALICE), (EVE, BOB)):
            with suppress(NotOpened):
                opened.append((kind, box.hex(), keys.open(box, sender.public_key)))

    assert [] == opened


@pytest.mark.parametrize("tamper", TAMPERS, ids=lambda tamper: str(tamper.__name__))
def test_one_seed_makes_the_same_forgeries(tamper: Tamper) -> None:
    """So that a forgery that opened could be reproduced; another seed makes others."""
    sealed, other = Traffic(payload).boxes[:2]
    runs = [
        [tamper(sealed, other, rng) for _ in range(50)]
        for rng in (Random(1), Random(1), Random(2))
    ]

    assert runs[0] == runs[1]
    assert runs[0] != runs[2] or tamper in {nonce_of_another, tag_of_another}
    assert set(runs[0]) - {sealed}
