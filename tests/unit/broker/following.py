"""Peers that follow topics, for the tests of followers. It judges nothing."""

from typing import Final

from braidmq.broker.delivery.channels import Peer
from braidmq.broker.delivery.followers import Follower
from braidmq.broker.marks import mark
from braidmq.broker.settings import Settings
from braidmq.broker.topics import Message
from tests.unit.broker.drive import Drive, S, peer_of

KEY: Final = bytes(range(1, 33))
OTHER_KEY: Final = bytes(range(101, 133))
SENDER: Final = bytes(range(201, 233))
BOX: Final = bytes(range(128, 168))
"""As long as the box of nothing, and no JSON."""

OFFLINE_US: Final = 60 * S


def id_of(key: bytes) -> bytes:
    return key[:8]


def offline_drive() -> Drive:
    """Return a broker whose followers are kept while they are away."""
    return Drive(Settings(offline_us=OFFLINE_US))


def follow(
    drive: Drive, topic: str, key: bytes = KEY, *, peer: Peer | None = None, name: str = "ada"
) -> Peer:
    """Follow a topic, committed, and have what was missed read back."""
    peer = peer or peer_of(name)
    drive.broker.followers.follow(peer, drive.topic(topic), key, drive.now_us)
    drive.commit()
    return peer


def follower_of(peer: Peer, topic: str = "a") -> Follower:
    return peer.following[topic]


def qumbed(
    drive: Drive, topic: str, payload: bytes = b"x", *, to: bytes = b"", sender: bytes = b""
) -> Message:
    """Publish as a Qumbed publisher does, for the key *to* only if there is one."""
    message = drive.message(topic, payload)
    mark(message, schema_id="", recipient_key_id=id_of(to), sender_public_key=sender)
    drive.broker.publish(message, drive.now_us)
    return message


def take(peer: Peer) -> list[bytes]:
    """Take the payloads of all that was pushed, as if it were sent at once."""
    taken = peer.deliveries
    peer.deliveries = []
    return [delivery.message.payload for delivery in taken]


def give_room(drive: Drive, peer: Peer, room_bytes: int) -> None:
    """Let a peer have room again, and have the log read as long as some is left."""
    peer.room_bytes = room_bytes
    drive.broker.resume(peer, drive.now_us)
    drive.serve_reads()


def leave(drive: Drive, peer: Peer) -> None:
    drive.broker.detach(peer, drive.now_us)
    drive.commit()
