"""Trust: from which public keys messages are accepted, and on which topics.

A box proves that its sender holds a private key, not that it is a key we know. A trust list
decides which senders to trust:

- pinned keys are trusted on every topic;
- with trust on first use, the first sender on a topic is trusted from then on, on that topic
  (or the first few, as `senders_per_topic` says);
- all others are refused.

Senders trusted on first use are kept in a file that only its owner may access:

    {"version": 1,
     "topics": {"sensors/temp": ["07a37cbc..."]}}            topic: public keys in hex

1. The whole new file is written beside the old one and synced.
2. It takes the old one's place, and the directory is synced.
3. The sender is trusted. One that cannot be written down is not trusted: after a restart,
   another sender could be first.

Only one program at a time may use such a file. A message's topic is what the relay says, unless
it is in an envelope (envelope.py). Nothing here opens boxes: see boxes.py.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from braidmq.client.errors import InvalidArgument, KeyRefused, SenderRefused
from braidmq.client.qumbed.boxes import check_public_key, parse_public_key, read_private
from braidmq.wal.disk import Disk, replace_file

VERSION: Final = 1

LEARNED_MAX: Final = 10_000
"""Senders trusted on first use, over all topics: each new one rewrites the file."""

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
"""More than that many keys need, on topics with names of ordinary length."""


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    topics: dict[str, list[str]]


class TrustList:
    """The senders whose messages are accepted.

    *pinned* public keys always; with a file for *first_use*, the first *senders_per_topic*
    senders on a topic as well.

    Raises:
        KeyRefused: A pinned key is invalid, or the file cannot be used; it is not changed.
        InvalidArgument: The list would accept no sender at all.
    """

    def __init__(
        self,
        pinned: Iterable[bytes] = (),
        *,
        first_use: Path | str | None = None,
        senders_per_topic: int = 1,
    ) -> None:
        self._pinned = frozenset(pinned)
        for key in self._pinned:
            check_public_key(key)
        if not self._pinned and first_use is None:
            raise InvalidArgument("a trust list needs pinned keys or a first_use file")
        if senders_per_topic < 1:
            raise InvalidArgument("senders_per_topic must be at least 1")
        self._path = None if first_use is None else Path(first_use)
        self._senders_per_topic = senders_per_topic
        self._learned = {} if self._path is None else _load(self._path)

    def check(self, sender: bytes, topic: str) -> None:
        """Refuse a sender that is certainly not trusted; remember nothing.

        This comes before a box is opened, so that messages from unknown senders cost little.

        Raises:
            SenderRefused: It is not on the list, and cannot be trusted on first use.
        """
        if sender in self._pinned:
            return
        if self._path is None:
            raise SenderRefused(sender, "it is not on the trust list")
        known = self._learned.get(topic, ())
        if sender not in known and len(known) >= self._senders_per_topic:
            raise SenderRefused(sender, "other senders were first on this topic")

    def admit(self, sender: bytes, topic: str) -> None:
        """Trust a sender whose box has been opened, for the first time or again.

        Never call it earlier: only the opened box proves that the sender holds its key.

        Raises:
            SenderRefused: It is not trusted, or cannot be remembered.
        """
        self.check(sender, topic)
        if sender in self._pinned or sender in self._learned.get(topic, ()):
            return
        if sum(map(len, self._learned.values())) >= LEARNED_MAX:
            raise SenderRefused(sender, f"the limit of {LEARNED_MAX} senders is reached")
        # A copy: if it cannot be saved, nothing has changed.
        learned = {**self._learned, topic: (*self._learned.get(topic, ()), sender)}
        assert self._path is not None
        try:
            _save(self._path, learned)
        except OSError as error:
            reason = f"it cannot be remembered: {error.strerror}"
            raise SenderRefused(sender, reason) from None
        self._learned = learned

    def learned(self, topic: str) -> tuple[bytes, ...]:
        """Return the senders that are trusted on *topic* from first use."""
        return self._learned.get(topic, ())


def _save(path: Path, learned: dict[str, tuple[bytes, ...]]) -> None:
    topics = {topic: [key.hex() for key in learned[topic]] for topic in sorted(learned)}
    data = msgspec.json.format(msgspec.json.encode(_Content(VERSION, topics)), indent=1)
    replace_file(Disk(path.parent), path.name, data + b"\n")


def _load(path: Path) -> dict[str, tuple[bytes, ...]]:
    try:
        data = read_private(path, bytes_max=FILE_BYTES_MAX)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise KeyRefused(f"{path}: cannot be read: {error.strerror}") from None
    try:
        content = msgspec.json.decode(data, type=_Content)
    except (ValueError, RecursionError) as error:
        raise KeyRefused(f"{path}: does not hold a trust list: {error}") from None
    if content.version != VERSION:
        problem = f"has version {content.version}; this program supports {VERSION}"
        raise KeyRefused(f"{path}: {problem}")
    try:
        return {
            topic: tuple(parse_public_key(key) for key in keys)
            for topic, keys in content.topics.items()
        }
    except KeyRefused as error:
        raise KeyRefused(f"{path}: {error}") from None
