"""Rules: how the deliveries of one channel are repeated, and when the broker gives up on them.

A Blip subscription obeys the settings of delivery, a queue what it was declared with. Pure
decisions; delivery acts on them.
"""

from typing import Final, final

from braidmq.broker.delivery import retry
from braidmq.broker.policy import Policy
from braidmq.broker.settings import Settings

NO_BOUND: Final = 2**60


@final
class Rules:
    """The numbers that one channel's deliveries obey."""

    def __init__(
        self,
        *,
        attempts_max: int,
        timeout_us: int,
        backoff_us: int,
        backoff_max_us: int,
        in_flight_max: int,
        window: int,
        window_bytes: int,
    ) -> None:
        self.attempts_max: int = attempts_max  # 0: no limit
        self.in_flight_max: int = in_flight_max  # messages, of all consumers together
        self.window: int = window  # messages that wait in memory
        self.window_bytes: int = window_bytes  # of them, and of those in flight
        self.dead_letters: bool = True  # off: what is given up on is dropped, and counted
        self.dead_letter_topic: str = ""  # empty: `dlq.` and the topic's name
        self.expired_are_letters: bool = False
        self.first_goes_alone: bool = False  # one attempt only: each delivery is the last
        self.letters_keep_ids: bool = False  # a dead letter has its message's id as a header
        self.serves_idle: bool = False  # an idle consumer gets one, whatever others hold
        self._timeout_us: int = timeout_us
        self._backoff_us: int = backoff_us
        self._backoff_max_us: int = backoff_max_us
        self._first_delay_us: int = timeout_us + backoff_us

    def delay_us(self, attempts: int) -> int:
        """Return how long after delivery number *attempts* the message is ready again."""
        if attempts == 1:
            return self._first_delay_us
        return self._timeout_us + retry.delay_us(
            attempts, backoff_us=self._backoff_us, backoff_max_us=self._backoff_max_us
        )

    def lift_limits(self) -> None:
        """Stop giving up on messages: these are dead letters, which die only once."""
        self.attempts_max = 0
        self.dead_letters = False
        self.first_goes_alone = False

    def is_exhausted(self, attempts: int) -> bool:
        """Say whether a message that was delivered *attempts* times is given up on."""
        return self.attempts_max > 0 and retry.is_exhausted(attempts, self.attempts_max)

    def is_last(self, attempts: int) -> bool:
        """Say whether the delivery after *attempts* ones is the last, and must go alone."""
        return self.attempts_max > 0 and retry.is_last(attempts, self.attempts_max)


def of_settings(settings: Settings, *, limited: bool = True) -> Rules:
    """Return the rules of a subscription by delivery's settings.

    Dead letters are not *limited*: they wait until a consumer takes them.
    """
    return Rules(
        attempts_max=settings.max_retries if limited else 0,
        timeout_us=0,
        backoff_us=settings.retry_backoff_us,
        backoff_max_us=settings.retry_backoff_max_us,
        in_flight_max=settings.window,
        window=settings.window,
        window_bytes=settings.window_bytes,
    )


def of_policy(policy: Policy, settings: Settings) -> Rules:
    """Return the rules of a queue."""
    rules = Rules(
        attempts_max=policy.max_attempts,
        timeout_us=settings.queues.ack_timeout_us,
        backoff_us=settings.queues.backoff_us,
        backoff_max_us=settings.queues.backoff_max_us,
        in_flight_max=NO_BOUND,
        window=settings.queues.window,
        window_bytes=settings.queues.window_bytes,
    )
    rules.dead_letters = policy.dead_letters
    rules.dead_letter_topic = policy.dead_letter_name
    rules.expired_are_letters = True
    rules.letters_keep_ids = True
    rules.serves_idle = True
    rules.first_goes_alone = policy.max_attempts == 1
    return rules
