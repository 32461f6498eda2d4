"""The gate of a Vibe connection: authentication, permissions, administration of users.

Passwords are checked and users changed on other threads, and the answer comes later. Until then
the gate is *asking*, and the connection executes no further command.
"""

from typing import TYPE_CHECKING, Final, final

from braidmq.base import refusals
from braidmq.broker.authorize import ADMIN, CREATE_QUEUE, PUBLISH, Principal, authorize
from braidmq.server.access.user_administration import FOR_ONESELF, Outcome, administer
from braidmq.server.engine.connection import Wire
from braidmq.wire.vibe import messages, session

if TYPE_CHECKING:
    from braidmq.server.engine.engine import Engine
    from braidmq.server.strands.vibe.connection import VibeConnection

NOT_ALLOWED: Final = session.NOT_ALLOWED

TOO_MANY_CHECKS: Final = (
    "too many passwords of this address wait or were wrong; try again in some seconds; "
    + refusals.FOR_GOOD
)


class VibeOptions:
    """The strand's configuration, as every connection needs it."""

    def __init__(self, *, max_message_bytes: int, auto_create: bool, version: str) -> None:
        self.max_message_bytes: int = max_message_bytes
        self.auto_create: bool = auto_create
        self.version: str = version


@final
class Gate:
    """Authentication and permissions of one connection."""

    def __init__(
        self,
        connection: "VibeConnection",
        engine: "Engine",
        wire: Wire,
        *,
        version: str,
        number: int,
    ) -> None:
        self.asking: bool = False  # waits for a password check, or for a change of users
        self.publishable: dict[str, int] = {}  # queue name: the principal's version
        self._connection: VibeConnection = connection
        self._session: session.Session = connection.session
        self._engine: Engine = engine
        self._wire: Wire = wire
        self._version: str = version
        self._number: int = number

    def connect(self, request: session.Request) -> None:
        """Authenticate the peer by its key, or by its name and password."""
        self._session.negotiate(request.headers)
        token = request.headers.get("authToken")
        if token is not None:  # hashing a key is fast: no thread is needed
            self._finish_connect(request.id, self._engine.find_principal(token))
            return
        name = request.headers.get("authUsername")
        if name is None:
            self._finish_connect(request.id, None)
            return
        password = request.headers.get("authPassword", "")
        users = self._engine.users
        assert users is not None
        self.asking = True  # before the call; `check` never answers while it runs
        users.check(
            name,
            password,
            lambda found: self._password_checked(request.id, found),
            address=str(getattr(self._wire, "peer_address", "")),  # a wire of a test has none
            limited=lambda: self._password_limited(request),
        )

    def _password_checked(self, request_id: str, found: Principal | None) -> None:
        self.asking = False
        if self._connection.closed:
            return
        self._finish_connect(request_id, found)
        self._connection.wake()
        self._engine.end_turn()

    def _password_limited(self, request: session.Request) -> None:
        self.asking = False
        if self._connection.closed:
            return
        self._connection.error(request, session.RATE_LIMITED, TOO_MANY_CHECKS)
        self._connection.wake()
        self._engine.end_turn()

    def _finish_connect(self, request_id: str, found: Principal | None) -> None:
        connection = self._connection
        if found is None:
            self._engine.authentication_failures["vibe"] += 1
            reply, is_last = self._session.refused(request_id)
            connection.output.reply(reply)
            if is_last:
                connection.end()
            return
        if not self._wire.greeted(found.name):
            text = refusals.TOO_MANY_CONNECTIONS
            connection.output.reply(self._session.error(request_id, session.SERVER_ERROR, text))
            connection.end()
            return
        if connection.principal is not found:
            # The cached versions are those of the previous principal.
            self.publishable = {}
            for consumer in connection.queue_consumers.values():
                consumer.allowed = consumer.barred = -1  # permissions are those of the new user
        connection.principal = found
        headers = {
            "serverVersion": self._version,
            "connectionId": f"srv_{self._number}",
        }
        connection.output.reply(self._session.connected(request_id, headers))

    def is_allowed(self, operation: str, request: session.Request) -> bool:
        """Return whether the peer may do this; refuse the request if not."""
        principal = self._connection.principal
        assert principal is not None
        if authorize(principal, operation, request.queue):
            return True
        self._connection.error(request, session.AUTH_FAILED, NOT_ALLOWED)
        return False

    def permits(self, kind: int, queue: str) -> bool:
        """Return whether the peer may send a command that takes a payload.

        The session asks before it reads on.
        """
        principal = self._connection.principal
        assert principal is not None
        if kind == messages.PUBLISH:
            is_known = self.publishable.get(queue) == principal.version
            return is_known or authorize(principal, PUBLISH, queue)
        if kind == messages.CREATE_QUEUE:
            return authorize(principal, CREATE_QUEUE, queue)
        users = self._engine.users
        if (
            kind in FOR_ONESELF
            and users is not None
            and users.find(principal.name) is principal
        ):
            return True  # whether it is about itself is in the payload
        return authorize(principal, ADMIN, "")

    def may_publish(self, request: session.Request) -> bool:
        """Return whether the peer may publish to a queue, and remember if it may."""
        principal = self._connection.principal
        assert principal is not None
        if not self.is_allowed(PUBLISH, request):
            return False
        if len(self.publishable) >= session.KNOWN_QUEUES_MAX:
            self.publishable.clear()
        self.publishable[request.queue] = principal.version
        return True

    def administer(self, request: session.Request) -> None:
        """Execute a command about users."""
        principal = self._connection.principal
        users = self._engine.users
        assert principal is not None
        assert users is not None
        self.asking = True  # before the call; `administer` never answers while it runs
        administer(
            users,
            principal,
            request.kind,
            request.payload,
            lambda outcome: self._administered(request, outcome),
        )

    def _administered(self, request: session.Request, outcome: Outcome) -> None:
        self.asking = False
        if self._connection.closed:
            return
        if outcome.code:
            self._connection.error(request, outcome.code, outcome.text)
        else:
            self._connection.output.reply(
                self._session.reply(
                    request.kind, request.id, request.queue, payload=outcome.payload
                )
            )
        self._connection.wake()
        self._engine.end_turn()
