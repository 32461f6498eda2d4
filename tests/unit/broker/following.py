"""Peers that follow topics, for the follower tests. It asserts nothing."""

from typing import Final

from braidmq.broker.delivery.channels import Peer
from braidmq.broker.delivery.followers import Follower
from braidmq.broker.marks import mark
from braidmq.broker.settings import Settings
from braidmq.broker.topics import Message
from tests.unit.broker.drive import ROOM_BYTES, Drive, S, peer_of

KEY: Final = bytes(range(1, 33))
OTHER_KEY: Final = bytes(range(101, 133))
SENDER: Final = bytes(range(201, 233))
BOX: Final = bytes(range(128, 168))
"""As long as a box with an empty payload, and not JSON."""

OFFLINE_US: Final = 60 * S


def payloads(count: int) -> list[bytes]:
    """Return the payloads that `Drive.publish_many` publishes."""
    return [b"%d" % number for number in range(count)]


def id_of(key: bytes) -> bytes:
    return key[:8]


def offline_drive() -> Drive:
    """Return a broker that keeps followers while they are offline."""
    return Drive(Settings(offline_us=OFFLINE_US))


def follow(
    drive: Drive, topic: str, key: bytes = KEY, *, peer: Peer | None = None, name: str = "ada"
) -> Peer:
    """Follow a topic, commit, and read back the messages missed offline."""
    peer = peer or peer_of(name)
    drive.broker.followers.follow(peer, drive.topic(topic), key, drive.now_us)
    drive.commit()
    return peer


def follower_of(peer: Peer, topic: str = "a") -> Follower:
    return peer.following[topic]


def qumbed(
    drive: Drive, topic: str, payload: bytes = b"x", *, to: bytes = b"", sender: bytes = b""
) -> Message:
    """Publish as a Qumbed publisher does, only for the key *to* if one is given."""
    message = drive.message(topic, payload)
    mark(message, schema_id="", recipient_key_id=id_of(to), sender_public_key=sender)
    drive.broker.publish(message, drive.now_us)
    return message


def take(peer: Peer) -> list[bytes]:
    """Take the payloads of all deliveries, as if they had been sent."""
    taken = peer.deliveries
    peer.deliveries = []
    return [delivery.message.payload for delivery in taken]


def give_room(drive: Drive, peer: Peer, room_bytes: int) -> None:
    """Set a peer's room, resume it, and answer the reads that follow."""
    peer.room_bytes = room_bytes
    drive.broker.resume(peer, drive.now_us)
    drive.serve_reads()


def fall_behind(drive: Drive, peer: Peer, count: int, *, room_bytes: int = 0) -> None:
    """Publish to topic `a` beyond the peer's room, then give it room: a read is due."""
    peer.room_bytes = room_bytes
    drive.publish_many("a", count)
    peer.room_bytes = ROOM_BYTES
    drive.broker.resume(peer, drive.now_us)


def leave(drive: Drive, peer: Peer) -> None:
    drive.broker.detach(peer, drive.now_us)
    drive.commit()
