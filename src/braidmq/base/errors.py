"""The exceptions that more than one room speaks of.

    BraidError
    |-- ConfigError            a setting is wrong                        exit 2
    |-- AddressInUseError      a listener's address is taken             exit 69
    |-- DataDirInUseError      another broker holds the data directory   exit 75
    |-- WireError              a peer's bytes break the protocol (braidmq.wire.errors)
    |-- ClientError            what the client library raises (braidmq.client.errors)
    |-- NotAllowedError        a principal may not do what it asks for
    |-- RefusedRowError        a row that was staged for a sink cannot be a message
    |-- UnknownStageError      there is no such stage
    |-- DamagedStageError      a stage that rows are due from cannot be read
    |-- CursorError            a cursor cannot be had, or cannot be moved there
    `-- LogError
        |-- LogFullError       no room on the disk; the log is intact
        |-- LogPoisonedError   a write or fsync failed; final            exit 74
        |-- DamagedLogError    committed data cannot be read             exit 65
        `-- UnknownRecordError a record of a type this version does not know

A peer's mistake and the world's are exceptions with data; our own are asserts.
"""

from typing import Final

EXIT_USAGE: Final = 2
EXIT_DAMAGED_LOG: Final = 65
EXIT_ADDRESS_IN_USE: Final = 69
EXIT_IO_ERROR: Final = 74
EXIT_DATA_DIR_IN_USE: Final = 75


class BraidError(Exception):
    """Every exception that BraidMQ raises on purpose."""

    exit_code: int = 1


class ConfigError(BraidError):
    """A setting is unknown or has a value that cannot be used."""

    exit_code = EXIT_USAGE

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}" if key else problem)
        self.key = key
        self.problem = problem


class AddressInUseError(BraidError):
    """A listener cannot have the address it was given."""

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


class NotAllowedError(BraidError):
    """Who asks may not do that with the topic, cursor, query or stage of that name."""

    def __init__(self, operation: str, name: str) -> None:
        super().__init__(f"this API key may not {operation} {name!r}")
        self.operation = operation
        self.name = name


class RefusedRowError(BraidError):
    """A row of a stage cannot be a message; rows are counted from 0."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row}: {reason}")
        self.row = row
        self.reason = reason


class UnknownStageError(BraidError):
    """There is no such stage: it was dropped, has expired, or never was."""

    def __init__(self, stage: str) -> None:
        super().__init__(f"there is no stage {stage!r}: write its rows again")
        self.stage = stage


class DamagedStageError(BraidError):
    """A stage is there and cannot be read."""

    def __init__(self, stage: str, reason: str) -> None:
        super().__init__(f"stage {stage} is damaged: {reason}")
        self.stage = stage
        self.reason = reason


class CursorError(BraidError):
    """A cursor cannot be had under that name, is not there, or cannot be moved there."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"cursor {name!r}: {problem}")
        self.name = name
        self.problem = problem


class LogError(BraidError):
    """Something is wrong with the write-ahead log."""

    exit_code = EXIT_IO_ERROR


class LogFullError(LogError):
    """The disk has no room; what was committed is intact and publishing may resume."""

    def __init__(self, reason: str = "no space left on the log's disk") -> None:
        super().__init__(reason)


class LogPoisonedError(LogError):
    """A write or fsync failed: what the disk holds is unknown, and nothing is tried again."""

    def __init__(self, operation: str, reason: str) -> None:
        super().__init__(f"log poisoned: {operation} failed: {reason}")
        self.operation = operation
        self.reason = reason


class UnknownRecordError(LogError):
    """A record's type is not known to this version."""

    exit_code = EXIT_DAMAGED_LOG

    def __init__(self, kind: int) -> None:
        super().__init__(f"unknown record type {kind}")
        self.kind = kind


class DamagedLogError(LogError):
    """Committed data cannot be read; the broker does not start over it."""

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
