"""Why the broker does not do what was asked over HTTP, and the status that says so.

    RefusedError
    |-- UnknownQueueError    there is no such queue            404
    |-- UnknownTopicError    there is no such topic            404
    |-- UnknownMessageError  there is no such message          404
    |-- BadCursorError       a page goes on from elsewhere     400
    |-- QueueFullError       its queue takes no more           409
    |-- QueueExistsError     it is there, with other options   409
    |-- FanOutError          its letters are not sent back     409
    |-- LetterStaysError     this letter cannot be sent back   409
    |-- UnknownThingError    no such cursor, connection        404
    `-- NotYoursError        it belongs to another principal   403

What the engine cannot do now is an `UnavailableError` of `server.engine.refusals`, and is
answered with 503; the engine need not know HTTP.
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


class UnknownTopicError(RefusedError):
    """There is no topic of that name."""

    status = 404

    def __init__(self) -> None:
        super().__init__("no such topic")


class UnknownMessageError(RefusedError):
    """There is no message of the topic at that offset, or not any more."""

    status = 404

    def __init__(self) -> None:
        super().__init__("no such message")


class BadCursorError(RefusedError):
    """What a page was asked to go on from is not what the page before it said."""

    def __init__(self) -> None:
        super().__init__("after must be the `next` of a page with the same sort")


class QueueFullError(RefusedError):
    """The queue is full, and was declared to take no more then."""

    status = 409

    def __init__(self) -> None:
        super().__init__("the queue is full")


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


class LetterStaysError(RefusedError):
    """A letter cannot be sent back by itself now; the text says why."""

    status = 409


class UnknownThingError(RefusedError):
    """There is no cursor, no connection, no letter of that name."""

    status = 404


class NotYoursError(RefusedError):
    """Only its owner or an administrator may do it."""

    status = 403
