"""Why the broker does not do what was asked over HTTP, and the status that says so.

    RefusedError
    |-- UnknownQueueError    there is no such queue            404
    |-- QueueExistsError     it is there, with other options   409
    |-- FanOutError          its letters are not sent back     409
    `-- UnavailableError     not now, or not any more          503

They are raised by whoever answers for the broker, which need not know HTTP.
"""

from braidmq.base.errors import BraidError


class RefusedError(BraidError):
    """What was asked is not done."""

    status: int = 400


class UnknownQueueError(RefusedError):
    """There is no such queue, or it holds no dead letters where they were asked for."""

    status = 404

    def __init__(self, kind: str = "queue") -> None:
        super().__init__(f"no such {kind}")


class QueueExistsError(RefusedError):
    """The queue is there and was declared in another way."""

    status = 409

    def __init__(self) -> None:
        super().__init__("the queue exists with other options")


class FanOutError(RefusedError):
    """Letters of a fan-out are each subscriber's own, and wait nowhere to be sent back from."""

    status = 409

    def __init__(self) -> None:
        super().__init__("the letters of a fan-out go to its subscribers, not back")


class UnavailableError(RefusedError):
    """The broker cannot do it now: it is starting, ending, or its log takes nothing."""

    status = 503
