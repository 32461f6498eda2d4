"""The exceptions that more than one room uses.

    BraidError
    |-- ConfigError            a setting is wrong                        exit 2
    |-- AddressInUseError      a listener's address is taken             exit 69
    |-- NoSocketError          there is no room for a Unix socket
    |-- DataDirInUseError      another broker holds the data directory   exit 75
    |-- NoThreadError          the machine has no room for a thread
    |-- WireError              a peer's bytes break the protocol (braidmq.wire.errors)
    |-- ClientError            raised by the client library (braidmq.client.errors)
    |-- NotAllowedError        a principal lacks the permission
    |-- RefusedRowError        a row that was staged for a sink is not a valid message
    |-- UnknownStageError      there is no such stage
    |-- DamagedStageError      a stage of an open batch cannot be read
    |-- CursorError            a cursor is unknown, or cannot be opened or moved
    `-- LogError
        |-- LogFullError       no room on the disk; the log is intact
        |   `-- LogScarceError no descriptor or memory; the log is intact
        |-- LogPoisonedError   a write or fsync failed; final            exit 74
        |-- LogReadError       the disk does not return committed data   exit 74
        |-- DamagedLogError    committed data cannot be read             exit 65
        `-- UnknownRecordError a record of a type this version does not know

Mistakes of a peer, an operator or the machine are exceptions that carry data; our own mistakes
are asserts.
"""

from typing import Final

EXIT_USAGE: Final = 2
EXIT_DAMAGED_LOG: Final = 65
EXIT_ADDRESS_IN_USE: Final = 69
EXIT_IO_ERROR: Final = 74
EXIT_DATA_DIR_IN_USE: Final = 75

NO_SPACE: Final = "no space left on the log's disk; whoever runs the broker can make room"
"""The limit is the disk, and a client cannot raise it."""


class BraidError(Exception):
    """The base of every exception that BraidMQ raises on purpose."""

    exit_code: int = 1


class ConfigError(BraidError):
    """A setting is unknown, or its value is not valid."""

    exit_code = EXIT_USAGE

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}" if key else problem)
        self.key = key
        self.problem = problem


class AddressInUseError(BraidError):
    """A listener cannot bind its address."""

    exit_code = EXIT_ADDRESS_IN_USE

    def __init__(self, strand: str, address: str, reason: str) -> None:
        super().__init__(f"{strand}: cannot listen on {address}: {reason}")
        self.strand = strand
        self.address = address


class DataDirInUseError(BraidError):
    """Another broker holds the data directory."""

    exit_code = EXIT_DATA_DIR_IN_USE

    def __init__(self, path: str) -> None:
        super().__init__(f"data directory {path} is in use by another broker")
        self.path = path


class NoSocketError(BraidError):
    """There is no directory in which a Unix socket can be made."""


class NotAllowedError(BraidError):
    """The principal may not do this with the topic, cursor, query or stage of that name."""

    def __init__(self, operation: str, name: str) -> None:
        super().__init__(f"this API key may not {operation} {name!r}")
        self.operation = operation
        self.name = name


class QuotaError(BraidError):
    """A quota of the principal is used up; the text names it and who may raise it."""


class RefusedRowError(BraidError):
    """A row of a stage is not a valid message; rows are counted from 0."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row}: {reason}")
        self.row = row
        self.reason = reason


class NoThreadError(BraidError):
    """The broker cannot start: the machine has no memory, or no process, for its threads."""

    def __init__(self, thread: str, reason: str) -> None:
        super().__init__(
            f"the thread {thread} cannot be started: {reason}; give the broker more memory, "
            "or raise its limit of processes (ulimit -u)"
        )
        self.thread = thread
        self.reason = reason


class UnknownStageError(BraidError):
    """There is no such stage: it was dropped, has expired, or never existed."""

    def __init__(self, stage: str) -> None:
        super().__init__(f"there is no stage {stage!r}: write its rows again")
        self.stage = stage


class DamagedStageError(BraidError):
    """A stage exists but cannot be read."""

    def __init__(self, stage: str, reason: str) -> None:
        super().__init__(f"stage {stage} is damaged: {reason}")
        self.stage = stage
        self.reason = reason


class CursorError(BraidError):
    """A cursor is unknown, or cannot be opened or moved as asked."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"cursor {name!r}: {problem}")
        self.name = name
        self.problem = problem


class LogError(BraidError):
    """The base of all errors of the write-ahead log."""

    exit_code = EXIT_IO_ERROR


class LogFullError(LogError):
    """The disk is full. The log is intact, and publishing can resume once there is room."""

    def __init__(self, reason: str = NO_SPACE) -> None:
        super().__init__(reason)


class LogScarceError(LogFullError):
    """The system had no descriptor or no memory to spare. Nothing was done; it is retried.

    To whoever waits for the log it is what a full disk is: the log is intact, it refuses for
    the moment, and goes on by itself.
    """

    def __init__(self, operation: str, reason: str) -> None:
        super().__init__(
            f"{operation}: {reason}; the log tries again: "
            "raise the limit of open files (ulimit -n), or give the machine more memory"
        )
        self.operation = operation
        self.reason = reason


class LogPoisonedError(LogError):
    """A write or fsync failed: the content of the disk is unknown. Nothing is retried.

    After a failed fsync the kernel may report success for a second one without having written
    the lost pages, so a retry would prove nothing.
    """

    def __init__(self, operation: str, reason: str) -> None:
        super().__init__(f"log poisoned: {operation} failed: {reason}")
        self.operation = operation
        self.reason = reason


class LogReadError(LogError):
    """The disk failed to return bytes of the log; nothing is known to be wrong with them.

    Unlike damage this may pass: with a loose cable, a controller, a network disk. So it never
    comes with the advice to give anything up.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"reading {path} failed: {reason}; check the disk and the kernel's log, "
            "then start the broker again"
        )
        self.path = path
        self.reason = reason


class UnknownRecordError(LogError):
    """This version does not know the type of a record."""

    exit_code = EXIT_DAMAGED_LOG

    def __init__(self, kind: int) -> None:
        super().__init__(f"unknown record type {kind}")
        self.kind = kind


class DamagedLogError(LogError):
    """Committed data cannot be read; the broker refuses to start."""

    exit_code = EXIT_DAMAGED_LOG

    def __init__(
        self, segment: str, *, offset: int, first_id: int, last_id: int, reason: str
    ) -> None:
        super().__init__(
            f"damaged log: {segment} at offset {offset}, ids {first_id} to {last_id}: {reason}"
            "; see 'braidmq wal verify', 'braidmq wal repair --accept-loss'"
        )
        self.segment = segment
        self.offset = offset
        self.first_id = first_id
        self.last_id = last_id
        self.reason = reason
