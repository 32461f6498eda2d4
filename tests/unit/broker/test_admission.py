"""Publish admission: every verdict against a small oracle, and the effects of each."""

from itertools import product
from typing import Final, NamedTuple

import pytest

from braidmq.broker import admission
from braidmq.broker.admission import (
    DUPLICATE,
    FULL,
    GO,
    REDIRECT,
    REFUSED,
    STARVED,
    UNCOMMITTED_BYTES_MAX,
    WAIT,
)
from braidmq.broker.dedup import HEADER, NEW
from braidmq.broker.policy import (
    BLOCK_PUBLISHER,
    DROP_NEWEST,
    DROP_OLDEST,
    REDIRECT_TO_DLQ,
    Policy,
)
from braidmq.broker.settings import Settings
from braidmq.broker.topics import TOPIC_NAMES_BYTES_MAX, Message, encode_headers
from tests.unit.broker.drive import Drive, peer_of

DRAINING: Final = "the broker is shutting down"
LOG_FULL: Final = "the disk is full"
STRATEGIES: Final = (DROP_OLDEST, DROP_NEWEST, BLOCK_PUBLISHER, REDIRECT_TO_DLQ)


class Case(NamedTuple):
    """Everything that a verdict depends on."""

    is_repeat: bool
    draining: bool
    log_refuses: bool
    log_is_behind: bool
    qos: int
    queue: bool
    durable: bool
    full: bool
    strategy: int
    letters: bool


def cases() -> list[Case]:
    """Return every combination; queue settings vary only where there is a queue."""
    flags = (False, True)
    found: list[Case] = []
    for repeat, draining, refuses, behind, qos in product(flags, flags, flags, flags, (0, 1)):
        plain = Case(
            repeat,
            draining,
            refuses,
            behind,
            qos,
            queue=False,
            durable=True,
            full=False,
            strategy=DROP_NEWEST,
            letters=True,
        )
        found.append(plain)
        found += [
            plain._replace(
                queue=True, durable=durable, full=full, strategy=strategy, letters=letters
            )
            for durable, full, strategy, letters in product(flags, flags, STRATEGIES, flags)
        ]
    return found


def expected(case: Case) -> int:
    """Return the verdict that the contract demands."""
    if case.is_repeat:
        return DUPLICATE
    overflows = case.queue and case.full and case.strategy != DROP_OLDEST
    redirects = overflows and case.strategy == REDIRECT_TO_DLQ and case.letters
    blocks = overflows and case.strategy == BLOCK_PUBLISHER
    own_record = case.qos == 1 and (case.durable or not case.queue)
    takes_records = not (case.draining or case.log_refuses)
    if own_record and not takes_records:
        return REFUSED
    if blocks:
        return REFUSED if case.draining else WAIT
    if overflows and not redirects:
        return FULL
    if redirects and not takes_records:
        return REFUSED
    if (own_record or redirects) and case.log_is_behind:
        return STARVED
    return REDIRECT if redirects else GO


def prepared(case: Case) -> tuple[Drive, Message]:
    """Return a broker in the case's state, and the message to judge."""
    drive = Drive()
    if case.queue:
        policy = Policy()
        policy.overflow, policy.max_size = case.strategy, 1
        policy.dead_letters, policy.durable = case.letters, case.durable
        drive.declare("q", policy)
        if case.full:
            drive.publish("q", b"first")
            drive.commit()
    broker = drive.broker
    if case.is_repeat:
        broker.dedup.remember("q", "d", 7, drive.now_us)
    if case.log_refuses:
        broker.refused(broker.committed_id + 1, LOG_FULL, drive.now_us)
    if case.draining:
        broker.admission.drain(DRAINING)
    if case.log_is_behind:
        broker.outgoing.bytes = UNCOMMITTED_BYTES_MAX
    message = drive.message("q", qos=case.qos)
    message.headers = encode_headers({HEADER: "d"})
    return drive, message


def test_every_verdict_matches_the_oracle() -> None:
    """Every combination of draining, refusal, duplicate, limit, strategy and durability."""
    wrong: list[tuple[Case, int, int]] = []
    for case in cases():
        drive, message = prepared(case)
        waits = drive.broker.admission.must_wait(message)  # which ignores duplicates
        verdict = drive.broker.admission.judge(message, "d", drive.now_us)
        predicted = case.is_repeat or waits == (verdict in {WAIT, STARVED})
        if verdict != expected(case) or not predicted:
            wrong.append((case, expected(case), verdict))

    assert [] == wrong
    assert 32 * (1 + 32) == len(cases())
    assert set(range(GO, STARVED + 1)) == {expected(case) for case in cases()}


def test_judging_counts_a_refusal_once_and_stores_nothing() -> None:
    """`judge` counts refusals and duplicates; only `accept` assigns ids."""
    wrong: list[Case] = []
    for case in cases():
        drive, message = prepared(case)
        broker = drive.broker
        before = broker.stats.refused, broker.stats.duplicates, broker.stats.dead_lettered
        verdict = broker.admission.judge(message, "d", drive.now_us)
        after = broker.stats.refused, broker.stats.duplicates, broker.stats.dead_lettered
        due = verdict in {REFUSED, FULL}, verdict == DUPLICATE, False
        counted = tuple(bool(b - a) for a, b in zip(before, after, strict=True))
        is_new = broker.dedup.find("q", "d", drive.now_us) == NEW
        if counted != due or message.id or is_new == case.is_repeat:
            wrong.append(case)

    assert [] == wrong


def test_sink_rows_get_the_same_verdicts_and_are_never_counted() -> None:
    """A row always has a record, has no dedup id, and the sink limits its own backlog."""
    wrong: list[tuple[Case, int]] = []
    for case in cases():
        drive, message = prepared(case)
        stats = drive.broker.stats
        before = stats.refused, stats.duplicates, stats.dead_lettered
        verdict = drive.broker.admission.judge_row(message, drive.now_us)
        alike = case._replace(is_repeat=False, qos=1, durable=True, log_is_behind=False)
        counted = before != (stats.refused, stats.duplicates, stats.dead_lettered)
        if verdict != expected(alike) or counted:
            wrong.append((case, verdict))

    assert [] == wrong


# Details.


def full_queue(strategy: int, *, durable: bool = True, letters: str = "") -> Drive:
    drive = Drive()
    policy = Policy()
    policy.overflow, policy.max_size, policy.durable = strategy, 1, durable
    policy.dead_letter_name = letters
    drive.declare("q", policy)
    drive.publish("q", b"first")
    drive.commit()
    return drive


def accepted(drive: Drive, payload: bytes = b"x", dedup_id: str = "d") -> int:
    """Publish to `q` as the strands do; return the stored message's id."""
    message = drive.message("q", payload)
    message.headers = encode_headers({HEADER: dedup_id})
    verdict = drive.broker.admission.judge(message, dedup_id, drive.now_us)
    if verdict == DUPLICATE:
        return drive.broker.admission.known_id
    assert verdict in {GO, REDIRECT}
    return drive.broker.accept(verdict, message, dedup_id, drive.now_us).id


def test_draining_takes_precedence_over_a_full_log() -> None:
    """Draining is permanent, so it is the reason given, also once the log accepts again."""
    judge = Drive().broker.admission
    judge.log_refuses(LOG_FULL)
    full = judge.refusal
    judge.drain(DRAINING)
    judge.log_refuses(LOG_FULL)
    both = judge.refusal
    judge.log_accepts()

    assert (LOG_FULL, DRAINING, DRAINING) == (full, both, judge.refusal)


def test_a_duplicate_of_a_redirected_publish_makes_no_second_dead_letter() -> None:
    """The dedup id is remembered for the queue that the publish was addressed to."""
    drive = full_queue(REDIRECT_TO_DLQ)
    ids = {accepted(drive) for _ in range(3)}
    drive.commit()

    assert 1 == len(ids)
    assert (1, 2) == (drive.broker.stats.dead_lettered, drive.broker.stats.duplicates)
    assert 1 == drive.queue("dlq.q").waiting()


def test_a_duplicate_in_the_same_batch_is_found() -> None:
    """The broker knows the dedup id before anything is committed."""
    drive = Drive()

    assert accepted(drive) == accepted(drive)


@pytest.mark.parametrize("strategy", [DROP_OLDEST, REDIRECT_TO_DLQ])
def test_a_dedup_id_is_forgotten_when_the_log_refuses_its_message(strategy: int) -> None:
    """The retry is stored, also as a dead letter, and the counters are corrected."""
    drive = full_queue(strategy)
    accepted(drive)
    drive.refuse()
    refused = drive.broker.stats.refused, drive.broker.stats.dead_lettered
    drive.broker.accept_again()
    accepted(drive)
    drive.commit()

    is_letter = strategy == REDIRECT_TO_DLQ
    assert (1, 0) == refused
    assert (is_letter, 0) == (drive.broker.stats.dead_lettered, drive.broker.stats.duplicates)


def test_a_dead_letter_queue_ignores_its_size_limit() -> None:
    """Dead letters have no size limit, even if their queue was declared with one."""
    drive = full_queue(REDIRECT_TO_DLQ, letters="grave")
    policy = Policy()
    policy.overflow, policy.max_size = DROP_NEWEST, 1
    drive.declare("grave", policy)
    for number in range(3):
        accepted(drive, dedup_id=f"d{number}")
    drive.commit()

    assert 3 == drive.queue("grave").waiting()


def test_a_deleted_dead_letter_queue_is_declared_again() -> None:
    """The next dead letter recreates its queue."""
    drive = full_queue(REDIRECT_TO_DLQ)
    accepted(drive, dedup_id="1")
    drive.commit()
    drive.broker.queues.delete(drive.queue("dlq.q"))
    accepted(drive, dedup_id="2")
    drive.commit()

    assert 1 == drive.queue("dlq.q").waiting()


def test_a_redirect_without_a_dead_letter_topic_is_refused_as_full() -> None:
    """The topic limit leaves no room for the dead-letter topic; the publisher is told."""
    drive = full_queue(REDIRECT_TO_DLQ)
    drive.broker.topics._names_bytes = TOPIC_NAMES_BYTES_MAX  # noqa: SLF001 - a million names take long
    verdict = drive.broker.admission.judge(drive.message("q"), "", drive.now_us)

    assert (FULL, 1) == (verdict, drive.broker.stats.refused)


# Waiting publishers.


@pytest.mark.parametrize("event", ["drain", "refuse"])
def test_a_blocked_publisher_is_woken_and_refused(event: str) -> None:
    """It retries when draining begins or the log refuses, and is refused."""
    drive = full_queue(BLOCK_PUBLISHER)
    broker = drive.broker
    publisher = peer_of("ada")
    before = broker.admission.judge(drive.message("q"), "", drive.now_us)
    drive.queue("q").line().append(publisher)
    if event == "drain":
        broker.admission.drain(DRAINING)
    else:
        drive.refuse()

    assert (WAIT, [publisher]) == (before, broker.take_touched())
    assert [] == drive.queue("q").blocked
    assert REFUSED == broker.admission.judge(drive.message("q"), "", drive.now_us)


def test_a_memory_only_publish_waits_for_room_but_not_while_draining() -> None:
    """A full log does not stop consumers from making room; draining does."""
    drive = full_queue(BLOCK_PUBLISHER, durable=False)
    drive.refuse()
    refusing = drive.broker.admission.judge(drive.message("q"), "", drive.now_us)
    drive.broker.admission.drain(DRAINING)
    draining = drive.broker.admission.judge(drive.message("q"), "", drive.now_us)

    assert (WAIT, REFUSED, DRAINING) == (refusing, draining, drive.broker.admission.reason)


def test_a_publisher_that_gives_up_counts_as_refused() -> None:
    """A publisher whose wait timed out was refused."""
    drive = Drive()
    drive.broker.admission.gave_up()

    assert 1 == drive.broker.stats.refused


@pytest.mark.parametrize("memory_bytes", [1, UNCOMMITTED_BYTES_MAX, 10 * UNCOMMITTED_BYTES_MAX])
def test_uncommitted_bytes_stay_within_the_memory_budget(memory_bytes: int) -> None:
    """A memory budget below the usual limit becomes the limit."""
    judge = Drive(Settings(memory_bytes=memory_bytes)).broker.admission

    assert min(memory_bytes, UNCOMMITTED_BYTES_MAX) == judge.uncommitted_bytes_max


def test_which_publishes_need_a_record() -> None:
    """Those with QoS 1, unless the queue is not durable."""
    drive = full_queue(DROP_NEWEST, durable=False)
    plain = [admission.needs_record(drive.message("t", qos=qos)) for qos in (0, 1)]
    queued = [admission.needs_record(drive.message("q", qos=qos)) for qos in (0, 1)]

    assert ([False, True], [False, False]) == (plain, queued)
