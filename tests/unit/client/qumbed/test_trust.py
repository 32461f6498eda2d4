"""Trust lists: whose messages are accepted."""

import json
import stat
from pathlib import Path

import pytest

from braidmq.client.errors import InvalidArgument, KeyRefused, SenderRefused
from braidmq.client.qumbed import trust
from braidmq.client.qumbed.boxes import KeyPair
from braidmq.client.qumbed.trust import TrustList
from tests.unit.client.qumbed.people import ALICE, BOB, EVE, with_sign_bit

TOPIC = "sensors/temp"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trust.json"


def write(path: Path, content: bytes, mode: int = 0o600) -> None:
    path.touch()
    path.chmod(mode)
    path.write_bytes(content)


def test_only_pinned_keys_are_trusted_on_every_topic() -> None:
    """Using the list does not change it."""
    pinned = TrustList([ALICE.public_key, BOB.public_key])

    for topic in (TOPIC, "other"):
        pinned.check(ALICE.public_key, topic)
        pinned.admit(BOB.public_key, topic)
        with pytest.raises(SenderRefused, match="it is not on the trust list") as caught:
            pinned.check(EVE.public_key, topic)
        with pytest.raises(SenderRefused):
            pinned.admit(EVE.public_key, topic)
        assert EVE.public_key == caught.value.key
    assert () == pinned.learned(TOPIC)


def test_the_first_sender_on_a_topic_is_trusted_there(path: Path) -> None:
    """Another sender is refused there, but may be the first on another topic."""
    first_use = TrustList(first_use=path)
    first_use.admit(ALICE.public_key, TOPIC)
    first_use.admit(EVE.public_key, "other")

    first_use.check(ALICE.public_key, TOPIC)
    first_use.admit(ALICE.public_key, TOPIC)
    with pytest.raises(SenderRefused, match="other senders were first on this topic"):
        first_use.check(EVE.public_key, TOPIC)
    with pytest.raises(SenderRefused, match="other senders were first on this topic"):
        first_use.admit(ALICE.public_key, "other")


def test_learned_senders_survive_a_restart(path: Path) -> None:
    """Otherwise the second sender would become the first."""
    TrustList(first_use=path).admit(ALICE.public_key, TOPIC)
    again = TrustList(first_use=str(path))

    assert (ALICE.public_key,) == again.learned(TOPIC)
    with pytest.raises(SenderRefused):
        again.admit(EVE.public_key, TOPIC)


def test_checking_a_sender_does_not_learn_it(path: Path) -> None:
    """Until its box is opened, a message only claims its sender."""
    first_use = TrustList(first_use=path)
    first_use.check(EVE.public_key, TOPIC)

    assert () == first_use.learned(TOPIC)
    assert not path.exists()


def test_a_topic_can_have_several_first_senders(path: Path) -> None:
    """As many as allowed; pinned ones are not counted."""
    others = [KeyPair.generate().public_key for _ in range(3)]
    several = TrustList([ALICE.public_key], first_use=path, senders_per_topic=2)
    several.admit(ALICE.public_key, TOPIC)
    several.admit(others[0], TOPIC)
    several.admit(others[1], TOPIC)

    assert tuple(others[:2]) == several.learned(TOPIC)
    with pytest.raises(SenderRefused):
        several.check(others[2], TOPIC)


def test_the_trust_file_has_the_documented_format_and_mode(path: Path) -> None:
    """Only its owner can read and write it."""
    first_use = TrustList(first_use=path)
    first_use.admit(ALICE.public_key, TOPIC)
    first_use.admit(EVE.public_key, "é")

    assert {
        "version": 1,
        "topics": {TOPIC: [ALICE.public_key.hex()], "é": [EVE.public_key.hex()]},
    } == json.loads(path.read_bytes())
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    assert [path] == list(path.parent.iterdir())


def test_a_sender_that_cannot_be_saved_is_not_trusted(tmp_path: Path) -> None:
    """After a restart another could be the first; once saving works, it is trusted."""
    path = tmp_path / "gone" / "trust.json"
    first_use = TrustList(first_use=path)

    with pytest.raises(SenderRefused, match="cannot be remembered: No such file"):
        first_use.admit(ALICE.public_key, TOPIC)
    assert () == first_use.learned(TOPIC)
    path.parent.mkdir()
    first_use.admit(ALICE.public_key, TOPIC)
    assert (ALICE.public_key,) == TrustList(first_use=path).learned(TOPIC)


def test_the_number_of_learned_senders_is_bounded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay that makes up topics does not make the file grow forever."""
    monkeypatch.setattr(trust, "LEARNED_MAX", 2)
    first_use = TrustList(first_use=path)
    first_use.admit(ALICE.public_key, "a")
    first_use.admit(ALICE.public_key, "b")

    with pytest.raises(SenderRefused, match="the limit of 2 senders is reached"):
        first_use.admit(ALICE.public_key, "c")
    first_use.admit(ALICE.public_key, "a")


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o602])
def test_a_trust_file_accessible_to_others_is_refused(path: Path, mode: int) -> None:
    """Another user may have added a key to it."""
    write(path, b'{"version": 1, "topics": {}}', mode)

    with pytest.raises(KeyRefused, match=r"trust\.json: is accessible to other users"):
        TrustList(first_use=path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "does not hold a trust list"),
        (b"\xff", "does not hold a trust list"),
        (b"[]", "does not hold a trust list"),
        (5_000 * b"[", "does not hold a trust list"),
        (b'{"version": 1}', "missing required field `topics`"),
        (b'{"version": 1, "topics": {}, "more": 1}', "unknown field `more`"),
        (b'{"version": 2, "topics": {}}', "has version 2; this program supports 1"),
        (b'{"version": 1, "topics": {"t": ["07a3"]}}', "must be 64 hexadecimal digits"),
        (b'{"version": 1, "topics": {"t": ["%s"]}}' % (64 * b"0"), "is of low order"),
    ],
)
def test_a_malformed_trust_file_is_refused_and_left_alone(
    path: Path, content: bytes, problem: str
) -> None:
    """Starting with an empty list would trust the next sender that comes along."""
    write(path, content)

    with pytest.raises(KeyRefused, match=rf"trust\.json: .*{problem}"):
        TrustList(first_use=path)
    assert content == path.read_bytes()


def test_a_path_that_is_not_a_file_is_refused(tmp_path: Path) -> None:
    """Only a missing file counts as an empty list."""
    with pytest.raises(KeyRefused, match="is not a file"):
        TrustList(first_use=tmp_path)
    write(tmp_path / "file", b"")
    with pytest.raises(KeyRefused, match="cannot be read: Not a directory"):
        TrustList(first_use=tmp_path / "file" / "trust.json")


@pytest.mark.parametrize("key", [b"", 31 * b"k", bytes(32), with_sign_bit(ALICE.public_key)])
def test_an_invalid_pinned_key_is_refused(key: bytes) -> None:
    """When the list is made."""
    with pytest.raises(KeyRefused, match="the public key is"):
        TrustList([ALICE.public_key, key])


def test_a_list_that_would_refuse_every_sender_is_an_error(path: Path) -> None:
    """It is certainly a mistake."""
    with pytest.raises(InvalidArgument, match="a trust list needs pinned keys"):
        TrustList()
    with pytest.raises(InvalidArgument, match="senders_per_topic must be at least 1"):
        TrustList(first_use=path, senders_per_topic=0)
