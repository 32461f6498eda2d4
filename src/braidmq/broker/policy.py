"""Policies: what a queue was declared with. Rules: the numbers that deliveries obey.

A queue obeys its declaration, a Blip subscription the settings of delivery; both become the
`Rules` of a channel: how its deliveries are repeated, and when the broker gives up on them.
Values and pure decisions; delivery acts on them.
"""

from typing import Final, final

from braidmq.broker.settings import Settings

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

NO_BOUND: Final = 2**60

_DOUBLINGS_MAX: Final = 40
"""Bounds the shift: by then every backoff has reached its maximum."""


_SHARED_MAX: Final = 256
"""Different policies to remember: peers choose their values, and must not fill the memory."""

_DELAY_STEPS: Final = 16
"""A delay that a consumer asks for is rounded up, by a sixteenth at most.

The schedule has one row for each distinct delay, and must not get one for each millisecond.
"""


@final
class Policy:
    """What a queue was declared with; a new one holds the defaults."""

    def __init__(self) -> None:
        self.mode: int = ROUND_ROBIN
        self.max_size: int = 0  # waiting messages; 0: no bound, the backlog lives in the log
        self.overflow: int = REDIRECT_TO_DLQ
        self.ttl_us: int = 0  # 0: messages do not expire
        self.dead_letters: bool = True
        self.dead_letter_name: str = ""  # empty: `dlq.` and the queue's name
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


@final
class Rules:
    """The numbers that one channel's deliveries obey; a new one has those of a subscription."""

    def __init__(self, settings: Settings) -> None:
        self.attempts_max: int = settings.max_retries  # 0: no limit
        self.in_flight_max: int = settings.window  # messages, of all consumers together
        self.window: int = settings.window  # messages that wait in memory
        self.window_bytes: int = settings.window_bytes  # of them, and of those in flight
        self.dead_letters: bool = True  # off: what is given up on is dropped, and counted
        self.expired_are_letters: bool = False
        self.first_goes_alone: bool = False  # one attempt only: each delivery is the last
        self.letters_keep_ids: bool = False  # a dead letter has its message's id as a header
        self.serves_idle: bool = False  # an idle consumer gets one, whatever others hold
        self.set_delays(0, settings.retry_backoff_us, settings.retry_backoff_max_us)

    def set_delays(self, timeout_us: int, backoff_us: int, backoff_max_us: int) -> None:
        """Repeat a delivery after the timeout and a backoff that doubles up to its maximum."""
        self._timeout_us: int = timeout_us
        self._backoff_us: int = backoff_us
        self._backoff_max_us: int = backoff_max_us
        self._first_delay_us: int = timeout_us + backoff_us  # most deliveries are the first

    def delay_us(self, attempts: int) -> int:
        """Return how long after delivery number *attempts* the message is ready again."""
        if attempts == 1:
            return self._first_delay_us
        assert attempts > 1
        backoff_us = self._backoff_us << min(attempts - 1, _DOUBLINGS_MAX)
        return self._timeout_us + min(backoff_us, self._backoff_max_us)

    def lift_limits(self) -> None:
        """Stop giving up on messages: these are dead letters, which die only once."""
        self.attempts_max = 0
        self.dead_letters = False
        self.first_goes_alone = False

    def is_exhausted(self, attempts: int) -> bool:
        """Say whether a message that was delivered *attempts* times is given up on."""
        return 0 < self.attempts_max <= attempts

    def is_last(self, attempts: int) -> bool:
        """Say whether the delivery after *attempts* ones is the last, and must go alone."""
        # Never where one delivery is allowed in all: `first_goes_alone` is for that.
        return 0 < attempts == self.attempts_max - 1


def of_policy(policy: Policy, settings: Settings) -> Rules:
    """Return the rules of a queue."""
    queues = settings.queues
    rules = Rules(settings)
    rules.attempts_max = policy.max_attempts
    rules.in_flight_max = NO_BOUND  # each consumer's prefetch bounds it instead
    rules.window = queues.window
    rules.window_bytes = queues.window_bytes
    rules.dead_letters = policy.dead_letters
    rules.expired_are_letters = True
    rules.first_goes_alone = policy.max_attempts == 1
    rules.letters_keep_ids = True
    rules.serves_idle = True
    rules.set_delays(queues.ack_timeout_us, queues.backoff_us, queues.backoff_max_us)
    return rules


@final
class SharedRules:
    """Policies and rules by their values: most queues are declared alike, and share them.

    They must not be changed.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings: Settings = settings
        self._policies: dict[str, Policy] = {}
        self._rules: dict[str, Rules] = {}

    def policy(self, declared: Policy) -> Policy:
        """Return a policy with the values of *declared*, which its owner may still change."""
        values = declared.values()
        key = repr(values)
        found = self._policies.get(key)
        if found is None:
            found = of_values(values)
            if len(self._policies) >= _SHARED_MAX:
                self._policies.clear()  # queues that have one keep it
            self._policies[key] = found
        return found

    def rules(self, policy: Policy) -> Rules:
        """Return the rules of a queue."""
        key = f"{policy.max_attempts} {policy.dead_letters}"
        found = self._rules.get(key)
        if found is None:
            found = of_policy(policy, self._settings)
            if len(self._rules) >= _SHARED_MAX:
                self._rules.clear()
            self._rules[key] = found
        return found


def rounded_up(delay_us: int) -> int:
    """Return a delay that a consumer asked for, as the schedule has it."""
    step = 1
    while 2 * step * _DELAY_STEPS <= delay_us:
        step *= 2
    return (delay_us + step - 1) // step * step
