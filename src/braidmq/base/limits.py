"""Bounds that more than one room keeps. A bound that one room keeps lives there."""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

TOPIC_BYTES_MAX: Final = 65_535
"""A topic's length travels as a u16 on every strand."""

MESSAGE_BYTES_MAX: Final = 16 * MIB
"""No strand carries more in one frame, so no record holds more of a message."""

RECORD_BYTES_MAX: Final = MESSAGE_BYTES_MAX + MIB
"""A message and what the broker says about it: headers, topic, times."""

assert TOPIC_BYTES_MAX < RECORD_BYTES_MAX - MESSAGE_BYTES_MAX
