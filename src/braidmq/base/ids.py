"""Ids: the number of a log record, strictly increasing over the whole broker."""

from typing import Final

NO_ID: Final = 0
"""Stands for the missing id of a memory-only message; no record ever has it."""

FIRST_ID: Final = 1
"""The id of the first record of a new log."""

ID_MAX: Final = 2**64 - 1
"""Ids are u64 on every wire and in the log."""
