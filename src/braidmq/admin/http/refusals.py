"""Why the broker refuses a request, and the HTTP status of the answer.

    RefusedError
    |-- UnknownQueueError    there is no such queue            404
    |-- UnknownLettersError  it holds no dead letters          404
    |-- UnknownTopicError    there is no such topic            404
    |-- UnknownMessageError  there is no such message          404
    |-- UnknownThingError    no such cursor, connection        404
    |-- BadCursorError       `after` is not a page's `next`    400
    |-- QueueFullError       the queue is full                 409
    |-- QueueExistsError     it exists with other options      409
    |-- TopicInUseError      it has a queue or subscriptions   409
    |-- FanOutError          a fan-out keeps its letters       409
    |-- LetterStaysError     this letter cannot be sent back   409
    |-- ReloadFailedError    a file cannot be used             409
    |-- OverQuotaError       a quota is used up                403
    |-- NotYoursError        it belongs to another principal   403
    `-- ForbiddenNameError   a name that it leads to is not    403

What the engine cannot do now is an `UnavailableError` of `server.engine.requests`, and is
answered with 503; the engine need not know HTTP.
"""

from braidmq.base.errors import BraidError


class RefusedError(BraidError):
    """The broker refuses the request; `text` says why, unless the caller gives a text."""

    status: int = 400
    text: str = ""

    def __init__(self, text: str = "") -> None:
        super().__init__(text or self.text)


class UnknownQueueError(RefusedError):
    """There is no queue of that name."""

    status = 404
    text = "no such queue"


class UnknownLettersError(RefusedError):
    """There is no queue of that name, or it holds no dead letters."""

    status = 404
    text = "no such queue of dead letters"


class UnknownTopicError(RefusedError):
    """There is no topic of that name."""

    status = 404
    text = "no such topic"


class UnknownMessageError(RefusedError):
    """There is no message of the topic at that offset, or no longer."""

    status = 404
    text = "no such message"


class UnknownThingError(RefusedError):
    """There is no such cursor, connection or letter."""

    status = 404


class BadCursorError(RefusedError):
    """The request's `after` is not the `next` of a page with the same sort."""

    text = "after must be the `next` of a page with the same sort"


class QueueFullError(RefusedError):
    """The queue is full, and its overflow strategy refuses new messages."""

    status = 409
    text = (
        "the queue is full: it was declared with a maxQueueSize; whoever may create it may "
        "delete it and declare it with another"
    )


class QueueExistsError(RefusedError):
    """The queue exists with other options."""

    status = 409
    text = "the queue exists with other options"


class TopicInUseError(RefusedError):
    """The topic cannot be deleted: it has a queue, or subscriptions."""

    status = 409


class FanOutError(RefusedError):
    """The letters of a fan-out belong to its subscribers; there is nothing to send back."""

    status = 409
    text = "letters of a fan-out cannot be replayed: its subscribers get them"


class LetterStaysError(RefusedError):
    """A letter cannot be sent back by itself now."""

    status = 409


class OverQuotaError(RefusedError):
    """A quota of the principal is used up."""

    status = 403


class NotYoursError(RefusedError):
    """Only the owner or an administrator may do this."""

    status = 403


class ForbiddenNameError(RefusedError):
    """The request leads to a queue, by its dead letters or a replay, that the key may not."""

    status = 403


class ReloadFailedError(RefusedError):
    """A file that was to be read again cannot be used; everything is as it was."""

    status = 409
