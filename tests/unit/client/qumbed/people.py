"""The key pairs of Alice, Bob and Eve, the golden box, and mutations of boxes."""

from random import Random
from typing import Final

from braidmq.client.qumbed.boxes import KeyPair
from tests.unit.wire.vectors import vectors

VECTORS: Final = vectors("qumbed")
GOLDEN: Final = bytes.fromhex(VECTORS["sealed"])
PLAINTEXT: Final[bytes] = VECTORS["plaintext"].encode()

ALICE: Final = KeyPair.from_hex(VECTORS["sender_secret"])
BOB: Final = KeyPair.from_hex(VECTORS["recipient_secret"])
EVE: Final = KeyPair(bytes(range(65, 97)))

PRIME: Final = 2**255 - 19
SIGN_BIT: Final = 2**255

MUTATIONS: Final = 10_000


def with_sign_bit(key: bytes) -> bytes:
    """Return the other encoding of a public key: the curve ignores the highest bit."""
    return (int.from_bytes(key, "little") | SIGN_BIT).to_bytes(32, "little")


def mutated(sealed: bytes, rng: Random) -> bytes:
    """Return *sealed* with one random change: a bit, a byte, an insertion, a cut."""
    while True:
        data = bytearray(sealed)
        at = rng.randrange(len(data))
        match rng.randrange(5):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.randrange(256)
            case 2:
                del data[at:]
            case 3:
                del data[at]
            case _:
                data.insert(at, rng.randrange(256))
        if data != sealed:
            return bytes(data)


def secrets_of(*keys: KeyPair) -> list[str]:
    """Return every encoding of private and shared keys that a text must not contain."""
    private = [pair.reveal_private_key() for pair in keys]
    shared = [bytes.fromhex(VECTORS["shared_key"])]
    return [text for key in private + shared for text in (key.hex(), repr(key)[2:-1])]
