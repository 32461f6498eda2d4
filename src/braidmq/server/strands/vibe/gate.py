"""The gate of a Vibe connection: who the peer is, what it may do, and who administers users."""

from typing import Final

from braidmq.broker.authorize import Principal, authorize
from braidmq.server.access.user_administration import Outcome
from braidmq.server.engine.connection import Connection
from braidmq.server.engine.host import Host, Limits, Wire
from braidmq.wire.vibe import session

NOT_ALLOWED: Final = "not allowed"


class VibeOptions:
    """What the strand's configuration says about every connection."""

    def __init__(self, *, max_message_bytes: int, auto_create: bool, version: str) -> None:
        self.max_message_bytes: int = max_message_bytes
        self.auto_create: bool = auto_create
        self.version: str = version


class VibeGate(Connection):
    """A Vibe connection as far as it is about the peer itself."""

    def __init__(
        self, host: Host, wire: Wire, limits: Limits, options: VibeOptions, number: int
    ) -> None:
        super().__init__(host, wire, limits)
        self._options: VibeOptions = options
        self._number: int = number
        self._session = session.Session(options.max_message_bytes)
        self._asking: bool = False  # a password or an administrator's command is looked at
        self._is_done: bool = False  # what the peer sends from now on is not looked at
        self._may_publish: dict[str, int] = {}  # queue name: the principal's version

    @property
    def is_authenticated(self) -> bool:
        """Whether the peer has proven who it is."""
        return self._session.state == session.CONNECTED

    def _connect(self, request: session.Request) -> None:
        self._session.negotiate(request.headers)
        token = request.headers.get("authToken")
        if token is not None:
            self._let_in(request.id, self._host.find_principal(token))
            return
        name = request.headers.get("authUsername")
        if name is None:
            self._let_in(request.id, None)
            return
        password = request.headers.get("authPassword", "")
        self._asking = self._host.check_password(
            name, password, lambda found: self._answered(request.id, found)
        )
        if not self._asking:
            self._error(request, session.RATE_LIMITED, "too many passwords wait; try again")

    def _answered(self, request_id: str, found: Principal | None) -> None:
        self._asking = False
        if self._closed:
            return
        self._let_in(request_id, found)
        self.wake()
        self._host.end_turn()

    def _let_in(self, request_id: str, found: Principal | None) -> None:
        if found is None:
            self._host.authentication_failures["vibe"] += 1
            reply, is_last = self._session.refused(request_id)
            self._reply(reply)
            if is_last:
                self._end()
            return
        if self.principal is not found:
            self._may_publish = {}
            for consumer in self.queue_consumers.values():
                consumer.allowed = consumer.barred = -1  # the new principal is checked again
        self.principal = found
        self._wire.greeted()
        headers = {
            "serverVersion": self._options.version,
            "connectionId": f"srv_{self._number}",
        }
        self._reply(self._session.connected(request_id, headers))

    def _is_allowed(self, operation: str, request: session.Request) -> bool:
        assert self.principal is not None
        if authorize(self.principal, operation, request.queue):
            return True
        self._error(request, session.AUTH_FAILED, NOT_ALLOWED)
        return False

    def _administer(self, request: session.Request) -> None:
        assert self.principal is not None
        self._asking = True
        self._host.administer(
            self.principal,
            request.kind,
            request.payload,
            lambda outcome: self._administered(request, outcome),
        )

    def _administered(self, request: session.Request, outcome: Outcome) -> None:
        self._asking = False
        if self._closed:
            return
        if outcome.code:
            self._error(request, outcome.code, outcome.text)
        else:
            self._reply(
                self._session.reply(
                    request.kind, request.id, request.queue, payload=outcome.payload
                )
            )
        self.wake()
        self._host.end_turn()

    def _end(self) -> None:
        self._is_done = True
        self._ending = True

    def _error(self, command: session.Command, code: str, text: str) -> None:
        self._reply(self._session.error(command.id, code, text, command.queue))
