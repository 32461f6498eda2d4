"""The blocking facade: the asynchronous surface without `await`, over a loop in a thread.

    with braidmq.sync.connect("blip://dev-key@127.0.0.1:5555") as client:
        client.publish("orders", b"1")
        with client.subscribe("orders") as messages:
            for message in messages:
                with message.process():
                    ...

Its methods are made from the asynchronous ones, with their signatures, types and docstrings, so
that an option is added in one place. Only what differs without `await` is written here.

Callbacks run in the loop's thread and must not call the facade: that raises, since the call
would wait for itself. Objects may be used from several threads; an iterator by one at a time.
"""

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, overload

import braidmq.client
from braidmq.client import deliveries, subscription, surface
from braidmq.client.errors import ClientError, Closed

TAKE_MAX: Final = 64
"""Messages that an iterator brings over from the loop's thread at once: to change threads for
each one would bound the throughput."""

A = TypeVar("A")
"""The asynchronous class that a facade is made from."""

P = ParamSpec("P")
T = TypeVar("T")


class LoopThread:
    """An event loop that runs in its own thread until it is stopped."""

    def __init__(self) -> None:
        self._started = threading.Event()
        self._lock = threading.Lock()  # over `_stopping`, and what is handed to the loop
        self._stopping = False
        # A daemon: a client that was never closed must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name="braidmq-client", daemon=True)
        self._thread.start()
        self._started.wait()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* in the loop and return its result.

        Raises:
            Closed: The loop was stopped.
            ClientError: Called from the loop's own thread.
        """
        if threading.current_thread() is self._thread:
            work.close()  # otherwise Python warns that it was never awaited
            raise ClientError(
                "a callback must not call the blocking client: it would wait for itself"
            )
        future = self._hand_over(work)
        try:
            return future.result()
        except CancelledError:  # by the loop, which cancels what is left when it ends
            raise Closed("it was closed") from None
        except BaseException:
            future.cancel()  # if the wait was interrupted, the work must not go on
            raise

    def stop(self) -> None:
        """End the loop and its thread; calling it again does nothing."""
        with self._lock:
            if not self._stopping and self._thread.is_alive():
                self._loop.call_soon_threadsafe(self._stopped.set)
            self._stopping = True
        self._thread.join()

    def _hand_over(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        # Before the stop, or not at all: the loop begins its work in the order in which it was
        # handed over, so that it ends, too. Later work might never begin.
        with self._lock:
            if not self._stopping and self._thread.is_alive():
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise Closed("it was closed")

    def _work(self) -> None:
        asyncio.run(self._until_stopped())

    async def _until_stopped(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._started.set()
        await self._stopped.wait()


class Facade(Generic[A]):
    """An object of the asynchronous surface, and the loop that it lives in."""

    __slots__ = ("_inner", "_loop")

    def __init__(self, loop: LoopThread, inner: A) -> None:
        self._loop = loop
        self._inner = inner

    def __repr__(self) -> str:
        return repr(self._inner)


class Reading(Generic[T]):
    """An attribute that is read from the asynchronous object, with its docstring."""

    def __init__(self, kind: type, doc: str = "") -> None:
        self._kind = kind
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        self.__doc__ = self.__doc__ or inspect.getdoc(getattr(self._kind, name))

    @overload
    def __get__(self, facade: None, owner: type) -> Self: ...
    @overload
    def __get__(self, facade: Facade[Any], owner: type) -> T: ...
    def __get__(self, facade: Facade[Any] | None, owner: type) -> Self | T:
        if facade is None:
            return self
        value: T = getattr(facade._inner, self._name)  # noqa: SLF001 - a part of the facade
        return value

    def __set__(self, facade: Facade[Any], value: T) -> None:
        raise AttributeError(f"{self._name} is read-only")


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Facade[A], P], T]:
    """Return *method* as one that blocks until its result is there."""

    @wraps(method)
    def call(self: Facade[A], /, *arguments: P.args, **options: P.kwargs) -> T:
        return self._loop.run(method(self._inner, *arguments, **options))

    return call


def _returning(call: Callable[P, T], result: object) -> Callable[P, T]:
    """Show *result* as what *call* returns, where `wraps` shows the asynchronous result."""
    signature = inspect.signature(call).replace(return_annotation=result)
    call.__signature__ = signature  # type: ignore[attr-defined] # `inspect` looks for it
    return call


class Message(Facade[deliveries.Message]):
    """A message as it was received; the broker redelivers it until it is acknowledged."""

    __slots__ = ()

    topic = Reading[str](deliveries.Message)
    payload = Reading[bytes](deliveries.Message)
    id = Reading["int | str | None"](deliveries.Message)
    qos = Reading[int](deliveries.Message)
    attempt = Reading["int | None"](deliveries.Message)
    timestamp = Reading[datetime | None](deliveries.Message)
    headers = Reading[Mapping[str, str]](deliveries.Message)
    sender = Reading["bytes | None"](deliveries.Message)
    sealed_by_gateway = Reading[bool](deliveries.Message)
    schema = Reading[str](deliveries.Message)

    ack = blocking(deliveries.Message.ack)
    nack = blocking(deliveries.Message.nack)

    @contextmanager
    def process(self) -> Iterator[Self]:
        """Return a context manager that acknowledges when its block succeeds.

        On an exception the message is given back or, where the strand cannot (Blip), left
        unacknowledged, to be redelivered; the exception propagates.
        """
        try:
            yield self
        except BaseException:
            # `failed` itself does not raise, but a client that was closed no longer runs it.
            # The handler's own exception is what the caller must see.
            with suppress(ClientError):
                self._loop.run(self._inner.failed())
            raise
        self.ack()


class Subscription(Facade[subscription.Subscription]):
    """A stream of one topic's messages: a context manager and an iterator."""

    def __init__(self, loop: LoopThread, inner: subscription.Subscription) -> None:
        super().__init__(loop, inner)
        self._taken: deque[deliveries.Message] = deque()

    topic = Reading[str](subscription.Subscription, "The topic it is subscribed to.")
    qos = Reading[int](subscription.Subscription, "The QoS that was requested.")
    subscription_id = Reading[int](
        subscription.Subscription,
        "The broker's id of this subscription, to resume it by; 0 before it is entered.",
    )
    refused = Reading[Mapping[str, int]](subscription.Subscription)

    def open(self) -> Self:
        """Subscribe; called by entering."""
        self._loop.run(self._inner.open())
        return self

    def fetch(self, *, max: int = 100, timeout: float = 1.0) -> list[Message]:  # noqa: A002 - the name users know it by
        """Return up to *max* messages, perhaps none.

        Returns at once if messages are waiting, else waits up to *timeout* seconds for the
        first; `timeout=0` takes what the broker has now.
        """
        # What the iterator brought over and did not hand out is waiting, too.
        messages = self._pop(max) or self._loop.run(self._inner.fetch(max=max, timeout=timeout))
        return [Message(self._loop, message) for message in messages]

    def drain(self) -> None:
        """Take no further messages and wait until acknowledgements are confirmed."""
        if self._inner._redelivers:  # noqa: SLF001 - a part of the facade
            self._taken.clear()
        self._loop.run(self._inner.drain())

    def close(self) -> None:
        """End it, as leaving the context does."""
        self._taken.clear()
        with suppress(Closed):  # with its client
            self._loop.run(self._inner.close())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        while not (messages := self._pop(1)):
            try:
                self._taken.extend(self._loop.run(self._inner.take(TAKE_MAX)))
            except Closed:
                raise StopIteration from None
        return Message(self._loop, messages[0])

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pop(self, limit: int) -> list[deliveries.Message]:
        """Return up to *limit* of the messages that were brought over."""
        messages: list[deliveries.Message] = []
        # Without asking first whether there is one: another thread may drain or close.
        with suppress(IndexError):
            while len(messages) < limit:
                messages.append(self._taken.popleft())
        return messages


def _subscribing(
    subscribe: Callable[Concatenate[surface.Client, P], subscription.Subscription],
) -> Callable[Concatenate[Facade[surface.Client], P], Subscription]:
    """Return *subscribe* for the facade; it does not wait, but belongs in the loop's thread."""

    @wraps(subscribe)
    def call(
        self: Facade[surface.Client], /, *arguments: P.args, **options: P.kwargs
    ) -> Subscription:
        async def in_loop() -> subscription.Subscription:
            return subscribe(self._inner, *arguments, **options)

        return Subscription(self._loop, self._loop.run(in_loop()))

    return _returning(call, Subscription)


class Client(Facade[surface.Client]):
    """A connection to a broker, made again when it breaks."""

    is_connected = Reading[bool](surface.Client)
    public_key = Reading[bytes](surface.Client)
    gateway_public_key = Reading[bytes](surface.Client)

    publish = blocking(surface.Client.publish)
    publish_many = blocking(surface.Client.publish_many)
    declare_queue = blocking(surface.Client.declare_queue)
    queue_info = blocking(surface.Client.queue_info)
    list_queues = blocking(surface.Client.list_queues)
    delete_queue = blocking(surface.Client.delete_queue)
    stats = blocking(surface.Client.stats)
    ping = blocking(surface.Client.ping)
    drain = blocking(surface.Client.drain)
    subscribe = _subscribing(surface.Client.subscribe)

    def close(self) -> None:
        """Close subscriptions, connections and the thread; calling it again does nothing."""
        try:
            self._loop.run(self._inner.close())
        except Closed:
            return
        self._loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _connecting(connect: Callable[P, surface.Connecting]) -> Callable[P, Client]:
    @wraps(connect)
    def blocking_connect(*arguments: P.args, **options: P.kwargs) -> Client:
        connecting = connect(*arguments, **options)

        async def work() -> surface.Client:
            return await connecting

        loop = LoopThread()
        try:
            return Client(loop, loop.run(work()))
        except BaseException:
            loop.stop()
            raise

    blocking_connect.__doc__ = f"Connect, and block until it is done.\n\n{connect.__doc__}"
    return _returning(blocking_connect, Client)


connect = _connecting(braidmq.client.connect)
