"""Policies: what was declared of a queue. Values only; delivery acts on them."""

from typing import Final, final

ROUND_ROBIN: Final = 0
FAN_OUT_WITH_ACK: Final = 1
FAN_OUT_WITHOUT_ACK: Final = 2
PRIORITY_BASED: Final = 3
"""Delivery modes."""

DROP_OLDEST: Final = 0
DROP_NEWEST: Final = 1
BLOCK_PUBLISHER: Final = 2
REDIRECT_TO_DLQ: Final = 3
"""What happens to a publish when `max_size` messages wait."""


@final
class Policy:
    """What was declared of a queue; a new one holds the defaults."""

    def __init__(self) -> None:
        self.mode: int = ROUND_ROBIN
        self.max_size: int = 0  # waiting messages; 0: no bound, the backlog lives in the log
        self.overflow: int = REDIRECT_TO_DLQ
        self.ttl_us: int = 0  # 0: messages do not expire
        self.dead_letters: bool = True
        self.dead_letter_name: str = ""  # empty: the queue's name behind `dlq.`
        self.max_attempts: int = 3  # 0: no limit
        self.durable: bool = True

    def values(self) -> list[int | str | bool]:
        """Return everything that was declared, in the order that `of_values` takes."""
        return [
            self.mode,
            self.max_size,
            self.overflow,
            self.ttl_us,
            self.dead_letters,
            self.dead_letter_name,
            self.max_attempts,
            self.durable,
        ]


def of_values(values: list[int | str | bool]) -> Policy:
    """Return the policy that `Policy.values` described."""
    policy = Policy()
    mode, max_size, overflow, ttl_us, dead_letters, name, max_attempts, durable = values
    policy.mode = int(mode)
    policy.max_size = int(max_size)
    policy.overflow = int(overflow)
    policy.ttl_us = int(ttl_us)
    policy.dead_letters = bool(dead_letters)
    policy.dead_letter_name = str(name)
    policy.max_attempts = int(max_attempts)
    policy.durable = bool(durable)
    return policy


def for_dead_letters() -> Policy:
    """Return the policy of a queue of dead letters: no bound, no expiry, no attempt limit."""
    policy = Policy()
    policy.max_attempts = 0
    policy.dead_letters = False
    return policy
