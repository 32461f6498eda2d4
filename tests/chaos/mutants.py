"""Planted bugs: patches to the sources, each of which breaks one promise.

Each edit must match exactly once. `hunt` plants the bugs and checks that they are caught.
"""

from dataclasses import dataclass
from typing import Final

SIMULATED: Final = ""
QUEUES: Final = "queues"
QUMBED: Final = "qumbed"
ADMISSION: Final = "admission"
"""Which checks must catch a mutant."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement in one file."""

    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug to plant."""

    name: str
    edits: tuple[Edit, ...]
    where: str = SIMULATED


def _mutant(name: str, *edits: tuple[str, str, str], where: str = SIMULATED) -> Mutant:
    return Mutant(name, tuple(Edit(*edit) for edit in edits), where)


def _of_queues(name: str, *edits: tuple[str, str, str]) -> Mutant:
    return _mutant(name, *edits, where=QUEUES)


def _of_qumbed(name: str, *edits: tuple[str, str, str]) -> Mutant:
    return _mutant(name, *edits, where=QUMBED)


def _of_admission(name: str, *edits: tuple[str, str, str]) -> Mutant:
    return _mutant(name, *edits, where=ADMISSION)


MUTANTS: Final = (
    _mutant(
        "acknowledge before the write",
        (
            "server/engine/engine.py",
            "            log.append(bodies, urgent=self.log_is_full)\n",
            """
            log.append(bodies, urgent=self.log_is_full)
            self.broker.committed(self.broker.outgoing.last_id, self.now_us())
            self._wake_waiting()
""",
        ),
    ),
    _mutant(
        "acknowledge before the sync",
        ("wal/wal.py", "if self._options.policy.wants_sync(", "if False and bool("),
    ),
    _mutant(
        "a torn tail is not cut off",
        ("wal/opening.py", "file.truncate(verdict.offset)", "del file"),
        (
            "wal/opening.py",
            "        finish_index(self._files, first_id)\n",
            "        finish_index(self._files, first_id)\n        segment.size = file.size()\n",
        ),
    ),
    _mutant(
        "the checksum skips the payload",
        ("wal/format.py", "crc = crc32c(head + body)", "crc = crc32c(body[:20])"),
        (
            "wal/format.py",
            "if crc32c(data[at : at + 12] + body) != crc:",
            "if crc32c(body[:20]) != crc:",
        ),
    ),
    _mutant(
        "acknowledgements are not written",
        (
            "broker/outgoing.py",
            "    if batch:\n        batches.append(batch)\n",
            "",
        ),
    ),
    _mutant(
        "a snapshot is kept before its records are committed",
        (
            "server/engine/engine.py",
            "if taken is None or taken.covered_id > self.broker.committed_id:",
            "if taken is None:",
        ),
    ),
    _mutant(
        "a failed sync is tried again",
        ("wal/wal.py", 'self._fail("fdatasync", error)', "del error"),
    ),
    _mutant(
        "the directory of a new segment is not synced",
        (
            "wal/segment.py",
            "    try:\n        files.sync_dir(LOG_DIR)\n",
            "    try:\n        pass\n",
        ),
    ),
    _mutant(
        "retention deletes without moving the floor",
        (
            "wal/wal.py",
            "                self._floor.rise(expired, needed_id)\n",
            "                pass\n",
        ),
    ),
    _mutant(
        "ids are reused after a crash",
        (
            "broker/state.py",
            "broker.outgoing.next_id = next_id\n",
            "broker.outgoing.next_id = max(1, next_id - 1)\n",
        ),
    ),
    _mutant(
        "acknowledged messages are redelivered after a restart",
        (
            "broker/delivery/channels.py",
            "        for after, last in made.ranges:\n",
            "        for after, last in made.ranges[1:]:\n",
        ),
    ),
    _mutant(
        "a replayed dead letter is not on its topic",
        (
            "broker/state.py",
            "    topic.last_id = record_id\n",
            "    if not stored.settles_subscription:\n        topic.last_id = record_id\n",
        ),
    ),
    _mutant(
        "a dead letter does not settle its message",
        (
            "broker/state.py",
            "            channel.replay_letter(stored.settles_after, stored.settles_id)\n",
            "            pass\n",
        ),
    ),
    _mutant(
        "a full disk leaves half a record",
        ("wal/segment.py", "self.file.truncate(self.size)", "self.size = self.file.size()"),
    ),
    _mutant(
        "a snapshot is not synced before it is renamed",
        ("wal/snapshots.py", "    try:\n        file.fsync()\n", "    try:\n        pass\n"),
    ),
    _mutant(
        "retention ignores the subscriptions",
        ("broker/snapshots.py", "self._need(row[3])", "pass"),
    ),
    _mutant(
        "PING does not wait for acknowledgements",
        (
            "server/strands/blip.py",
            "            self.last_id = self._broker.barrier()\n",
            "",
        ),
    ),
    _mutant(
        "SUBSCRIBE is answered before its commit",
        (
            "server/strands/blip.py",
            "SubscribeReply(record_id, ack,",
            "SubscribeReply(0, ack,",
        ),
    ),
    _mutant(
        "the ids of refused publishes are not reused",
        ("broker/outgoing.py", "        self.next_id = from_id\n", ""),
    ),
    _of_queues(
        "PublishAck is sent before the commit",
        (
            "server/strands/vibe/connection.py",
            "VibeReply(record_id, ack, request)",
            "VibeReply(0, ack, request)",
        ),
    ),
    _of_queues(
        "Pong does not wait for acknowledgements",
        (
            "server/strands/vibe/connection.py",
            "            self.last_id = self._broker.barrier()\n",
            "",
        ),
    ),
    _of_queues(
        "an acknowledgement in a queue is not recorded",
        (
            "broker/delivery/queue.py",
            "        return super().settle(entry)\n",
            "        return False\n",
        ),
        (
            "broker/delivery/queue.py",
            "        if self._settle_in_ledger(entry):\n            progress",
            "        if self._settle_in_ledger(entry) and 0:\n            progress",
        ),
    ),
    _of_queues(
        "a queue's declaration is not replayed",
        (
            "broker/state.py",
            "    if topic.queue is None:  # else the snapshot has it",
            "    if not policy:  # else the snapshot has it",
        ),
    ),
    _of_queues(
        "a snapshot leaves a queue out",
        (
            "broker/snapshots.py",
            "list(broker.queues.by_name.values())",
            "list(broker.queues.by_name.values())[1:]",
        ),
    ),
    _of_queues(
        "a queue forgets where its dead letters go",
        (
            "broker/records.py",
            "policy.dead_letter_name = record",
            "policy.dead_letter_name = '' and record",
        ),
    ),
    _of_queues(
        "a dead letter does not settle its message in the queue",
        ("broker/delivery/queue.py", "        settled.add(after_id, message_id)\n", ""),
    ),
    _of_queues(
        "two priorities record their progress under one id",
        (
            "broker/delivery/queue.py",
            "lane.id = lane_id(queue_id, lane.priority)",
            "lane.id = lane_id(queue_id, min(lane.priority, 1))",
        ),
    ),
    _of_queues(
        "a fan-out is settled on delivery",
        (
            "broker/delivery/pushing.py",
            "            progress.attempts[entry.id] = entry.attempts\n",
            """\
            progress.attempts[entry.id] = entry.attempts
            if journal is not channel and entry.attempts == 1:
                progress.settle(entry.previous, entry.id)
""",
        ),
    ),
    _of_queues(
        "attempts are lost at a restart",
        (
            "broker/delivery/channels.py",
            "know_attempts(made.attempts)",
            "know_attempts({})",
        ),
    ),
    _of_queues(
        "a deletion is not recorded",
        (
            "broker/delivery/queues.py",
            "return self._outgoing.add(Deleted(queue.id), records.encode_delete(queue.id))",
            "return self._outgoing.last_id",
        ),
    ),
    _of_queues(
        "a deletion is not replayed",
        ("broker/state.py", "broker.queues.end(queue)", "del queue"),
    ),
    _of_queues(
        "dedup ids are forgotten at a restart",
        (
            "broker/state.py",
            "broker.dedup.remember(meant_for, dedup_id, record_id, at_us, owner)",
            "del meant_for",
        ),
        ("broker/snapshots.py", "dedup.rows_of(name, part)", "dedup.rows_of(name, [])"),
    ),
    _of_queues(
        "a purge is confirmed before it is recorded",
        (
            "broker/delivery/settling.py",
            "return after a restart.\n        self.effects.acknowledged = True\n",
            "return after a restart.\n",
        ),
    ),
    _of_queues(
        "a snapshot counts what a later record counts again",
        ("broker/snapshots.py", "int = broker.full_barrier()", "int = broker.barrier()"),
        (
            "broker/snapshots.py",
            "self.covered_id = self._broker.full_barrier()",
            "self.covered_id = self._broker.barrier()",
        ),
    ),
    _of_queues(
        "retention ignores the queues",
        ("broker/snapshots.py", "self._need(lane[0])", "pass"),
        (
            "broker/snapshots.py",
            "self._need(view.settled_ranges(broker.committed_id))",
            "pass",
        ),
    ),
    _of_qumbed(
        "a Qumbed Ack is sent before the commit",
        (
            "server/strands/qumbed/deliveries.py",
            '(message.id, b"", frame_id)',
            '(0, b"", frame_id)',
        ),
    ),
    _of_qumbed(
        "a follower's progress is not recorded",
        (
            "broker/delivery/followers.py",
            "        if sent_id > self.noted_id:\n",
            "        if sent_id < self.noted_id:\n",
        ),
        (
            "broker/snapshots.py",
            "        follower.floor_id(committed_id),\n",
            "        follower.id,\n",
        ),
    ),
    _of_qumbed(
        "unsent deliveries to a follower count as received",
        (
            "broker/delivery/followers.py",
            "            if self.unreceived:\n",
            "            if False:\n",
        ),
    ),
    _of_qumbed(
        "a follower is not restored after a restart",
        (
            "broker/state.py",
            "        _add_follower(broker, record_id, topic_name, principal, key, record_id)\n",
            "        del key, principal, topic_name\n",
        ),
    ),
    _of_qumbed(
        "a snapshot leaves a follower out",
        ("broker/snapshots.py", "if follower.id > 0:\n", "if False:\n"),
    ),
    _of_qumbed(
        "a follower's end is not recorded",
        (
            "broker/delivery/followers.py",
            "        if follower.id < 0:\n            return 0\n",
            "        if follower.id != 0:\n            return 0\n",
        ),
    ),
    _of_qumbed(
        "the recipient of a message is not read from the log",
        (
            "broker/marks.py",
            '    if _RECIPIENT not in block:\n        return b""\n',
            '    if block:\n        return b""\n',
        ),
    ),
    _of_qumbed(
        "the dedup ids of Qumbed are forgotten at a restart",
        (
            "broker/state.py",
            "if dedup_id is not None:",
            'if dedup_id is not None and not dedup_id.startswith("qumbed:"):',
        ),
    ),
    _of_admission(
        "a full queue makes dead letters while the broker drains",
        (
            "broker/admission.py",
            "        if needs_record and self.refusal:\n",
            "        if needs_record and self.refusal and not queue.waiting():\n",
        ),
        (
            "broker/admission.py",
            "return REFUSED if self.refusal else REDIRECT",
            "return REDIRECT",
        ),
    ),
    _of_admission(
        "a publisher waits for room while the log refuses",
        (
            "broker/admission.py",
            "        if needs_record and self.refusal:\n",
            "        if needs_record and self.refusal and queue.policy.overflow != 2:\n",
        ),
    ),
    _of_admission(
        "a blocked publisher is not told that the log refuses",
        (
            "broker/admission.py",
            "self._draining or reason\n        self._queues.wake_blocked()\n",
            "self._draining or reason\n",
        ),
    ),
    _of_admission(
        "a duplicate of a redirected publish makes another dead letter",
        (
            "broker/broker.py",
            "        if dedup_id:\n",
            "        if dedup_id and stored is message:\n",
        ),
    ),
    _of_admission(
        "a redirected publish obeys what is declared of the dead-letter queue",
        (
            "broker/broker.py",
            "given = self.store_letter(stored)",
            "given = self.publish(stored, now_us)",
        ),
    ),
)
QUICK: Final = (
    "acknowledge before the write",
    "acknowledge before the sync",
    "acknowledgements are not written",
    "ids are reused after a crash",
    "a dead letter does not settle its message",
    "PublishAck is sent before the commit",
    "an acknowledgement in a queue is not recorded",
    "a deletion is not recorded",
)
"""Mutants that every run of the suite hunts: quick to catch, and each of a different kind."""
