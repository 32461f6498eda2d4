"""A sealed publish's plaintext is never in the broker's memory, log or files.

The test publishes a sealed canary to a Qumbed and a Blip subscriber, and then searches all
memory that the broker's process can read and every file that it wrote. The sealed bytes and a
second canary, published in plain text, prove that the search works.
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


def forms_of(secret: bytes) -> list[bytes]:
    """Return the forms a secret can take: its bytes, and base64 at each alignment."""
    forms = [secret]
    for before in range(3):
        text = base64.b64encode(bytes(before) + secret)
        # The characters at both ends depend on the neighbouring bytes, too.
        forms.append(text[(before * 8 + 5) // 6 : len(text) // 4 * 4 - 4])
    return forms


def found(forms: Iterable[bytes], places: Iterable[bytes]) -> bool:
    """Return whether any of *places* contains any of *forms*."""
    forms = list(forms)
    return any(form in place for place in places for form in forms)


def files_of(directory: Path) -> Iterator[bytes]:
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            yield path.read_bytes()


class Canary:
    """A secret to search for in the broker."""

    def __init__(self, secret: bytes, broker: Served, data_dir: Path) -> None:
        self._forms = forms_of(secret)
        self._broker = broker
        self._data_dir = data_dir

    def is_in_files(self) -> bool:
        return found(self._forms, files_of(self._data_dir))

    def is_in_memory(self) -> bool:
        return found(self._forms, memory_of(self._broker.process.pid))

    def is_in_log_lines(self) -> bool:
        return found(self._forms, [self._broker.stderr.encode()])


def skip_unless_memory_is_readable() -> None:
    """Skip the test where the kernel does not let a process read memory."""
    try:
        next(memory_of(os.getpid()))
    except OSError as error:
        pytest.skip(f"/proc/PID/mem cannot be read here: {error.strerror}")


@pytest.mark.slow
@pytest.mark.asyncio
async def test_the_plaintext_of_a_sealed_publish_never_reaches_the_broker(
    tmp_path: Path,
) -> None:
    """Memory, log and files hold the box, but never the plaintext, even after the end."""
    skip_unless_memory_is_readable()
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
            # The broker keeps unacknowledged messages in memory.
            assert [box, open_secret] == [(await blip.take(subscription))[1] for _ in range(2)]

            assert (True, True) == (boxed.is_in_files(), boxed.is_in_memory())
            assert (True, True) == (shown.is_in_files(), shown.is_in_memory())
            assert (False, False) == (hidden.is_in_files(), hidden.is_in_memory())
        assert 0 == await broker.end()

        assert (True, True) == (boxed.is_in_files(), shown.is_in_files())
        assert (False, False) == (hidden.is_in_files(), hidden.is_in_log_lines())
        assert not shown.is_in_log_lines()


async def deliver(peer: Peer, alice: KeyPair, bob: KeyPair, payloads: list[bytes]) -> None:
    """Publish *payloads* to *bob*, the first one sealed by *alice*, and check both."""
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
def test_a_secret_is_found_at_every_alignment(before: int) -> None:
    """Among other bytes, in plain text and in base64; and not where it is absent."""
    secret = secrets.token_hex(32).encode()
    among = bytes(before) + secret + b"behind"

    assert found(forms_of(secret), [b"", among])
    assert found(forms_of(secret), [base64.b64encode(among)])
    assert not found(forms_of(secret), [among.replace(secret[:8], b"12345678")])
