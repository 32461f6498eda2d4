"""A sealed publish's plaintext is never in the broker's memory, log or files.

A canary is published sealed, and comes to a Qumbed and a Blip subscriber; then everything that
the broker's process can read, and everything it wrote, is searched for it. That the search sees
what is there is shown by the sealed bytes, and by a second canary, which is published plain.
"""

import base64
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

from braidmq.client.qumbed.boxes import KeyPair
from tests.integration.qumbed.peer import Peer, ack, publish, subscribe, unb64
from tests.integration.qumbed.process import joined, memory_of
from tests.integration.served import Served, served

TOPIC: Final = "secrets"


def looks_of(secret: bytes) -> list[bytes]:
    """Return what a secret can be recognised by: itself, and base64 wherever it begins."""
    looks = [secret]
    for before in range(3):
        text = base64.b64encode(bytes(before) + secret)
        # Characters at both ends say something of the neighbours, too.
        looks.append(text[(before * 8 + 5) // 6 : len(text) // 4 * 4 - 4])
    return looks


def found(looks: Iterable[bytes], places: Iterable[bytes]) -> bool:
    """Say whether any of *looks* is at any of *places*."""
    looks = list(looks)
    return any(look in place for place in places for look in looks)


def files_of(directory: Path) -> Iterator[bytes]:
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            yield path.read_bytes()


class Canary:
    """A secret, and where in the broker it is."""

    def __init__(self, secret: bytes, broker: Served, data_dir: Path) -> None:
        self._looks = looks_of(secret)
        self._broker = broker
        self._data_dir = data_dir

    def is_in_files(self) -> bool:
        return found(self._looks, files_of(self._data_dir))

    def is_in_memory(self) -> bool:
        return found(self._looks, memory_of(self._broker.process.pid))

    def is_in_log_lines(self) -> bool:
        return found(self._looks, [self._broker.stderr.encode()])


def need_memory() -> None:
    """Skip where the kernel lets nobody look."""
    try:
        next(memory_of(os.getpid()))
    except OSError as error:
        pytest.skip(f"/proc/PID/mem cannot be read here: {error.strerror}")


@pytest.mark.slow
@pytest.mark.asyncio
async def test_the_plaintext_of_a_sealed_publish_is_nowhere(tmp_path: Path) -> None:
    """Not in memory, log or files, while the broker runs and after it; the box itself is."""
    need_memory()
    alice, bob = KeyPair.generate(), KeyPair.generate()
    secret, open_secret = (secrets.token_hex(32).encode() for _ in range(2))
    box = alice.seal(secret, bob.public_key)
    async with served(tmp_path) as broker:
        await broker.ready()
        hidden, boxed, shown = (
            Canary(one, broker, tmp_path / "data") for one in (secret, box, open_secret)
        )
        async with joined(broker) as peer, broker.peer() as blip:
            subscription = await blip.subscribe(TOPIC)
            await deliver(peer, alice, bob, [box, open_secret])
            # What is not acknowledged stays in the broker's hands.
            assert [box, open_secret] == [(await blip.take(subscription))[1] for _ in range(2)]

            assert (True, True) == (boxed.is_in_files(), boxed.is_in_memory())
            assert (True, True) == (shown.is_in_files(), shown.is_in_memory())
            assert (False, False) == (hidden.is_in_files(), hidden.is_in_memory())
        assert 0 == await broker.end()

        assert (True, True) == (boxed.is_in_files(), shown.is_in_files())
        assert (False, False) == (hidden.is_in_files(), hidden.is_in_log_lines())
        assert not shown.is_in_log_lines()


async def deliver(peer: Peer, alice: KeyPair, bob: KeyPair, payloads: list[bytes]) -> None:
    """Publish from one to the other, the first one sealed; see it come, and open it."""
    reader, writer = peer.open(), peer.open()
    assert ack() == await reader.ask(subscribe(TOPIC, bob.public_key))
    sealed, plain = payloads
    writer.send(publish(TOPIC, sealed, recipient=bob.key_id, sender=alice.public_key))
    writer.send(publish(TOPIC, plain))
    for _ in payloads:
        assert 1 == (await writer.answer())["a"]["delivered"]
    first, second = [(await reader.message())["m"] for _ in range(2)]

    assert sealed == unb64(first["encrypted_payload"])
    assert alice.public_key == unb64(first["sender_public_key"])
    gateway = unb64(second["sender_public_key"])
    assert plain == bob.open(unb64(second["encrypted_payload"]), gateway)


@pytest.mark.parametrize("before", range(4))
def test_a_secret_is_recognised_wherever_it_begins(before: int) -> None:
    """Among other bytes, as itself and in base64; and nowhere else."""
    secret = secrets.token_hex(32).encode()
    among = bytes(before) + secret + b"behind"

    assert found(looks_of(secret), [b"", among])
    assert found(looks_of(secret), [base64.b64encode(among)])
    assert not found(looks_of(secret), [among.replace(secret[:8], b"12345678")])
