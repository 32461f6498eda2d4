"""Bounds that more than one room enforces. A bound of a single room is defined there."""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

TOPIC_BYTES_MAX: Final = 65_535
"""A topic's length travels as a u16 on every strand."""

MESSAGE_BYTES_MAX: Final = 16 * MIB
"""No strand carries a longer frame, so no message in the log is longer."""

RECORD_BYTES_MAX: Final = MESSAGE_BYTES_MAX + MIB
"""A message with what the broker adds to it: headers, topic, times."""

assert TOPIC_BYTES_MAX < RECORD_BYTES_MAX - MESSAGE_BYTES_MAX
