"""Envelope v2: topic, schema, sender, sequence and time, sealed with the payload."""

import pickle
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.client.errors import (
    InvalidArgument,
    KeyRefused,
    MessageRefused,
    NotOpened,
    Replayed,
    Retargeted,
    SenderRefused,
)
from braidmq.client.qumbed import envelope as envelopes
from braidmq.client.qumbed.boxes import KeyPair
from braidmq.client.qumbed.envelope import (
    SEQUENCES_PER_MS,
    U64_MAX,
    WINDOW,
    Opened,
    Opener,
    ReplayWindow,
    Sealer,
)
from braidmq.client.qumbed.trust import TrustList
from braidmq.wire.qumbed.envelopes import Envelope, write_envelope
from tests.unit.client.qumbed.people import (
    ALICE,
    BOB,
    EVE,
    GOLDEN,
    MUTATIONS,
    PLAINTEXT,
    mutated,
    secrets_of,
    with_sign_bit,
)

TOPIC = "sensors/temp"
SCHEMA = "sensor.Temperature"
NOW_MS = 1_700_000_000_000
FIRST = NOW_MS * SEQUENCES_PER_MS

ENCODED = bytes.fromhex(
    "c1"  # mark
    "07a37cbc142093c8b755dc1b10e86cb426374ad16aa853ed0bdfc0b2b86d1c7c"  # sender
    "0000000000000007"  # sequence
    "0000018bcfe56800"  # timestamp ms
    "0002 c3a9"  # topic
    "0001 73"  # schema id
    "7b7d"  # payload
)
ENVELOPE = Envelope(ALICE.public_key, 7, NOW_MS, "é".encode(), b"s", b"{}")


def sealer(keys: KeyPair = ALICE) -> Sealer:
    return Sealer(keys, now_ms=NOW_MS)


def opener(keys: KeyPair = BOB, *, required: bool = False) -> Opener:
    return Opener(keys, trust=None, required=required)


def sealed_by_alice(payload: bytes = b"22.5") -> bytes:
    return sealer().seal(payload, BOB.public_key, topic=TOPIC, schema_id=SCHEMA, now_ms=NOW_MS)


def opened(opener: Opener, sealed: bytes, sender: bytes = ALICE.public_key) -> Opened:
    return opener.open(sealed, sender, topic=TOPIC, schema_id=SCHEMA)


def numbered(sequence: int, topic: str = TOPIC) -> bytes:
    """Return a box from Alice for Bob with this sequence number."""
    envelope = Envelope(ALICE.public_key, sequence, 0, topic.encode(), SCHEMA.encode(), b"")
    return ALICE.seal(write_envelope(envelope), BOB.public_key)


def test_a_truncated_envelope_is_refused() -> None:
    """It is not taken for a plain payload."""
    for size in range(1, len(ENCODED) - len(ENVELOPE.payload)):
        truncated = ALICE.seal(ENCODED[:size], BOB.public_key)
        with pytest.raises(MessageRefused, match="the envelope is truncated"):
            opened(opener(), truncated)


def test_opening_returns_everything_that_was_sealed() -> None:
    """Payload, sender, sequence and time."""
    assert Opened(b"22.5", ALICE.public_key, FIRST, NOW_MS) == opened(
        opener(), sealed_by_alice()
    )


def test_sequence_numbers_rise_with_each_message_and_each_restart() -> None:
    """A sender that restarts a moment later continues above its last number."""
    receiver = opener()
    one, two = sealer(), Sealer(ALICE, now_ms=NOW_MS + 1)
    numbers = [
        opened(
            receiver,
            each.seal(b"", BOB.public_key, topic=TOPIC, schema_id=SCHEMA, now_ms=NOW_MS),
        ).sequence
        for each in (one, one, two)
    ]

    assert [FIRST, FIRST + 1, FIRST + SEQUENCES_PER_MS] == numbers


def test_no_mutation_of_a_message_is_accepted() -> None:
    """The message itself is still accepted after all of them."""
    rng = Random(5)
    receiver = opener()
    sealed = sealed_by_alice()
    taken = []
    for _ in range(MUTATIONS):
        box = mutated(sealed, rng)
        with suppress(NotOpened):
            taken.append((box, opened(receiver, box)))

    assert [] == taken
    assert b"22.5" == opened(receiver, sealed).payload


def test_a_message_is_accepted_once() -> None:
    """The same box again is a replay; the error names sender and sequence number."""
    receiver = opener()
    sealed = sealed_by_alice()
    opened(receiver, sealed)

    for _ in range(2):
        with pytest.raises(Replayed, match=f"message {FIRST} of sender 07a37c") as caught:
            opened(receiver, sealed)
        assert (ALICE.public_key, FIRST) == (caught.value.key, caught.value.sequence)


@pytest.mark.parametrize(
    ("topic", "schema_id", "problem"),
    [
        ("sensors/other", SCHEMA, "another topic"),
        ("", SCHEMA, "another topic"),
        (TOPIC + "\udcff", SCHEMA, "another topic"),
        (TOPIC + SCHEMA, "", "another topic"),
        (TOPIC, "control.Command", "another schema"),
        (TOPIC, "", "another schema"),
    ],
)
def test_a_message_relayed_with_another_topic_or_schema_is_refused(
    topic: str, schema_id: str, problem: str
) -> None:
    """The attempt does not use up the sequence number of the genuine message."""
    receiver = opener()
    sealed = sealed_by_alice()

    with pytest.raises(Retargeted, match=f"the message was sealed (for|with) {problem}"):
        receiver.open(sealed, ALICE.public_key, topic=topic, schema_id=schema_id)
    assert b"22.5" == opened(receiver, sealed).payload


def test_a_reflected_message_is_refused() -> None:
    """A box opens in both directions; the envelope inside names the real sender."""
    sealed = sealed_by_alice()

    assert ENCODED[:33] == ALICE.open(sealed, BOB.public_key)[:33]
    with pytest.raises(SenderRefused, match="the message was sealed by another"):
        opened(opener(ALICE), sealed, BOB.public_key)
    with pytest.raises(SenderRefused, match="the key is the receiver's own"):
        opened(opener(ALICE), sealed, ALICE.public_key)


def test_a_message_for_another_recipient_is_refused() -> None:
    """It does not open with another sender's key, or another encoding of the right one."""
    sealed = sealed_by_alice()

    with pytest.raises(NotOpened):
        opened(opener(EVE), sealed)
    with pytest.raises(NotOpened):
        opened(opener(), sealed, EVE.public_key)
    with pytest.raises(SenderRefused, match="canonical"):
        opened(opener(), sealed, with_sign_bit(ALICE.public_key))


def test_a_box_without_an_envelope_is_accepted_unless_one_is_required() -> None:
    """Other implementations seal only the payload, without sequence and time."""
    assert Opened(PLAINTEXT, ALICE.public_key, None, None) == opened(opener(), GOLDEN)
    with pytest.raises(MessageRefused, match="the message has no envelope"):
        opened(opener(required=True), GOLDEN)


def test_only_boxes_of_trusted_senders_are_opened() -> None:
    """Untrusted senders are refused before any decryption."""
    keys = KeyPair(BOB.reveal_private_key())
    receiver = Opener(keys, trust=TrustList([ALICE.public_key]))
    untrusted = sealer(EVE).seal(b"", keys.public_key, topic=TOPIC, now_ms=NOW_MS)

    with pytest.raises(SenderRefused, match="not on the trust list"):
        opened(receiver, untrusted, EVE.public_key)
    assert 0 == keys.held_boxes
    assert b"22.5" == opened(receiver, sealed_by_alice()).payload


def test_first_use_requires_a_valid_message(tmp_path: Path) -> None:
    """A claimed key or a message for another topic does not count as first use."""
    trust = TrustList(first_use=tmp_path / "trust.json")
    receiver = Opener(BOB, trust=trust)
    with pytest.raises(NotOpened):
        opened(receiver, sealed_by_alice(), EVE.public_key)
    with pytest.raises(Retargeted):
        receiver.open(sealed_by_alice(), ALICE.public_key, topic="other", schema_id=SCHEMA)

    assert () == trust.learned(TOPIC)
    assert () == trust.learned("other")
    assert b"22.5" == opened(receiver, sealed_by_alice()).payload
    assert (ALICE.public_key,) == trust.learned(TOPIC)
    other = sealer(EVE).seal(b"", BOB.public_key, topic=TOPIC, schema_id=SCHEMA, now_ms=NOW_MS)
    with pytest.raises(SenderRefused, match="other senders were first"):
        opened(receiver, other, EVE.public_key)


def test_each_sender_and_topic_has_its_own_window() -> None:
    """Topics and senders are counted independently."""
    receiver = opener()
    eve = sealer(EVE).seal(b"", BOB.public_key, topic=TOPIC, schema_id=SCHEMA, now_ms=NOW_MS)
    opened(receiver, numbered(U64_MAX))

    assert FIRST == opened(receiver, eve, EVE.public_key).sequence
    late = receiver.open(numbered(3, "late"), ALICE.public_key, topic="late", schema_id=SCHEMA)
    assert 3 == late.sequence
    with pytest.raises(Replayed):
        opened(receiver, numbered(3))


def test_windows_are_bounded_and_none_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evicting an old sender's window would let its replays pass."""
    monkeypatch.setattr(envelopes, "WINDOWS_MAX", 1)
    receiver = opener()
    eve = sealer(EVE).seal(b"", BOB.public_key, topic=TOPIC, schema_id=SCHEMA, now_ms=NOW_MS)
    opened(receiver, numbered(5))

    with pytest.raises(SenderRefused, match="the limit of 1 senders is reached"):
        opened(receiver, eve, EVE.public_key)
    with pytest.raises(Replayed):
        opened(receiver, numbered(5))
    assert 6 == opened(receiver, numbered(6)).sequence


@pytest.mark.parametrize(
    ("topic", "schema_id", "problem"),
    [
        (65_536 * "t", "", "topic has at most 65535 bytes, not 65536"),
        ("t", 65_536 * "s", "schema_id has at most 65535 bytes, not 65536"),
        ("\udcff", "", "topic is text without lone surrogates"),
        ("t", "\udcff", "schema_id is text without lone surrogates"),
    ],
)
def test_a_topic_or_schema_that_does_not_fit_an_envelope_is_refused(
    topic: str, schema_id: str, problem: str
) -> None:
    """Before the message is sealed."""
    with pytest.raises(InvalidArgument, match=problem):
        sealer().seal(b"", BOB.public_key, topic=topic, schema_id=schema_id, now_ms=0)


def test_the_longest_topic_fits() -> None:
    """A message that could not be sealed uses up no sequence number."""
    alice = sealer()
    with pytest.raises(KeyRefused):
        alice.seal(b"", bytes(32), topic=TOPIC, now_ms=0)
    topic = 65_535 * "t"
    sealed = alice.seal(b"x", BOB.public_key, topic=topic, now_ms=0)

    assert FIRST == opener().open(sealed, ALICE.public_key, topic=topic).sequence


def test_no_text_of_a_message_shows_its_payload_or_a_key() -> None:
    """Neither an opened message, nor an envelope, nor an error does."""
    receiver = opener()
    sealed = sealed_by_alice(b"my secret")
    texts = [repr(opened(receiver, sealed)), repr(ENVELOPE._replace(payload=b"my secret"))]
    texts += [repr(receiver), repr(sealer())]
    for topic, sender in ((TOPIC, ALICE), ("other", ALICE), (TOPIC, EVE), (TOPIC, BOB)):
        with pytest.raises(MessageRefused) as caught:
            receiver.open(sealed, sender.public_key, topic=topic, schema_id=SCHEMA)
        texts += [str(caught.value), repr(caught.value)]

    for secret in [*secrets_of(ALICE, BOB, EVE), "my secret"]:
        assert not [text for text in texts if secret in text]


# --- the window alone -----------------------------------------------------------------------


class Oracle:
    """A window that remembers every number."""

    def __init__(self) -> None:
        self.taken: set[int] = set()

    def take(self, sequence: int) -> bool:
        is_too_old = bool(self.taken) and sequence <= max(self.taken) - WINDOW
        if is_too_old or sequence in self.taken:
            return False
        self.taken.add(sequence)
        return True


close = st.integers(0, 40)
around = st.integers(WINDOW - 4, 2 * WINDOW + 4)
far = st.one_of(st.integers(0, U64_MAX), st.integers(U64_MAX - 3, U64_MAX))


@given(st.lists(st.one_of(close, around, far), max_size=60))
def test_the_window_agrees_with_a_set(numbers: list[int]) -> None:
    """Each number is accepted once; those 1,024 or more behind the highest never are."""
    window, oracle = ReplayWindow(), Oracle()

    assert [oracle.take(n) for n in numbers] == [window.take(n) for n in numbers]


@given(st.lists(st.integers(-WINDOW - 2, WINDOW + 2), max_size=60))
def test_the_window_agrees_with_a_set_wherever_it_has_moved(steps: list[int]) -> None:
    """Each step starts from the highest number so far, so that the edges are always near."""
    window, oracle = ReplayWindow(), Oracle()
    oracle.take(FIRST)
    window.take(FIRST)
    for step in steps:
        number = max(oracle.taken) + step

        assert oracle.take(number) == window.take(number)


def test_the_edge_of_the_window() -> None:
    """1,023 behind the highest is still accepted, 1,024 behind it is too old."""
    window = ReplayWindow()

    assert window.take(5_000)
    assert window.take(5_000 - WINDOW + 1)
    assert not window.take(5_000 - WINDOW + 1)
    assert not window.take(5_000 - WINDOW)


@pytest.mark.parametrize("leap", [WINDOW, WINDOW + 1, 10 * WINDOW])
def test_a_leap_clears_the_old_window(leap: int) -> None:
    """Old numbers fall out of the window and block no new ones."""
    window = ReplayWindow()
    window.take(5_000)
    window.take(5_000 + leap)

    assert window.take(5_000 + leap - WINDOW + 1)
    assert not window.take(5_000)


def test_a_leap_costs_no_memory() -> None:
    """Even after a leap to the highest number the window keeps its size."""
    window = ReplayWindow()
    for number in [*range(3 * WINDOW), U64_MAX]:
        window.take(number)

    assert len(pickle.dumps(window)) < WINDOW // 8 + 200
    assert not window.take(0)
