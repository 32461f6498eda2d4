"""The blocking facade: the same names without `await`, over a loop in a thread of its own.

    with braidmq.sync.connect("blip://dev-key@127.0.0.1:5555") as client:
        client.publish("orders", b"1")
        with client.subscribe("orders") as messages:
            for message in messages:
                with message.process():
                    ...

Callbacks run in the loop's thread and must not call the facade: that raises, since it could
only wait for itself. Objects may be used from several threads; an iterator by one at a time.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar

import braidmq.client
from braidmq.client import surface
from braidmq.client.deliveries import Message as AsyncMessage
from braidmq.client.deliveries import Payload, QueueInfo, Receipt, Stats
from braidmq.client.errors import ClientError, Closed, PublishError
from braidmq.client.options import PublicKey

TAKE_MAX: Final = 64
"""Messages that an iterator brings over from the loop's thread at once."""

T = TypeVar("T")
P = ParamSpec("P")


class LoopThread:
    """An event loop that runs in its own thread until it is stopped."""

    def __init__(self) -> None:
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._work, name="braidmq-client", daemon=True)
        self._thread.start()
        self._started.wait()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* in the loop; wait for its result.

        Raises:
            Closed: The loop was stopped.
            ClientError: Called from the loop's own thread.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise ClientError("a callback may not wait for the loop that runs it")
        if not self._thread.is_alive():
            work.close()
            raise Closed("it was closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupted wait must not leave the work behind
            raise

    def stop(self) -> None:
        """End the loop and its thread; again does nothing."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join()

    def _work(self) -> None:
        asyncio.run(self._until_stopped())

    async def _until_stopped(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._started.set()
        await self._stopped.wait()


class Message:
    """A message as it was received; acknowledge it, or it comes again."""

    __slots__ = ("_loop", "_message")

    def __init__(self, loop: LoopThread, message: AsyncMessage) -> None:
        self._loop = loop
        self._message = message

    @property
    def topic(self) -> str:
        """The topic it was published to."""
        return self._message.topic

    @property
    def payload(self) -> bytes:
        """What was published."""
        return self._message.payload

    @property
    def id(self) -> int | str | None:
        """The message's id: a number on Blip (None for QoS 0) and Qumbed, text on Vibe."""
        return self._message.id

    @property
    def qos(self) -> int:
        """The effective qos: the lower of publisher's and subscriber's."""
        return self._message.qos

    @property
    def attempt(self) -> int | None:
        """Which delivery of the message this is; None where the strand is silent."""
        return self._message.attempt

    @property
    def headers(self) -> Mapping[str, str]:
        """The message's headers; empty on strands without them."""
        return self._message.headers

    @property
    def sender(self) -> bytes | None:
        """The public key of who sealed the message; None on strands without sealing."""
        return self._message.sender

    @property
    def sealed_by_gateway(self) -> bool:
        """Whether the broker itself sealed it, because its publisher had not."""
        return self._message.sealed_by_gateway

    @property
    def schema(self) -> str:
        """The id of the schema that the message was published with; empty without one."""
        return self._message.schema

    def ack(self, *, confirmed: bool = False) -> None:
        """Tell the broker that the message is done; raises as the asynchronous one does."""
        self._loop.run(self._message.ack(confirmed=confirmed))

    def nack(self, *, delay: float | None = None, dead_letter: bool = False) -> None:
        """Give the message back; raises NotSupported where the strand cannot."""
        self._loop.run(self._message.nack(delay=delay, dead_letter=dead_letter))

    @contextmanager
    def process(self) -> Iterator[Self]:
        """Acknowledge when the block ends well; on an exception the message comes again."""
        try:
            yield self
        except BaseException:
            self._loop.run(self._message.failed())
            raise
        self.ack()

    def __repr__(self) -> str:
        return repr(self._message)


class Subscription:
    """A stream of one topic's messages: a context manager and an iterator."""

    def __init__(self, loop: LoopThread, subscription: surface.Subscription) -> None:
        self._loop = loop
        self._subscription = subscription
        self._taken: deque[AsyncMessage] = deque()

    @property
    def topic(self) -> str:
        """The topic it is subscribed to."""
        return self._subscription.topic

    @property
    def qos(self) -> int:
        """The qos it was asked for."""
        return self._subscription.qos

    @property
    def subscription_id(self) -> int:
        """The broker's number of this subscription, to resume it by; 0 before it is entered."""
        return self._subscription.subscription_id

    @property
    def refused(self) -> Mapping[str, int]:
        """How many messages were refused, by reason; on strands with sealed messages."""
        return self._subscription.refused

    def open(self) -> Self:
        """Subscribe; called by entering."""
        self._loop.run(self._subscription.open())
        return self

    def fetch(self, *, max: int = 100, timeout: float = 1.0) -> list[Message]:  # noqa: A002 - the name users know it by
        """Return up to *max* messages, perhaps none; wait *timeout* seconds for the first."""
        messages = self._loop.run(self._subscription.fetch(max=max, timeout=timeout))
        return [Message(self._loop, message) for message in messages]

    def drain(self) -> None:
        """Take no further messages and wait until acknowledgements are confirmed."""
        self._taken.clear()
        self._loop.run(self._subscription.drain())

    def close(self) -> None:
        """End it, as leaving the context does."""
        self._taken.clear()
        self._loop.run(self._subscription.close())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        if not self._taken:
            try:
                self._taken.extend(self._loop.run(self._subscription.take(TAKE_MAX)))
            except Closed:
                raise StopIteration from None
        return Message(self._loop, self._taken.popleft())

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Client:
    """A connection to a broker, made again when it breaks."""

    def __init__(self, loop: LoopThread, client: surface.Client) -> None:
        self._loop = loop
        self._client = client

    def publish(
        self,
        topic: str,
        payload: Payload,
        *,
        qos: int = 1,
        headers: Mapping[str, str] | None = None,
        priority: int | None = None,
        ttl: float | None = None,
        recipient: PublicKey | None = None,
        schema: str = "",
        envelope: bool = False,
        retry: bool = False,
    ) -> Receipt:
        """Publish a message; return when it is durable. Raises as the asynchronous one does."""
        return self._loop.run(
            self._client.publish(
                topic,
                payload,
                qos=qos,
                headers=headers,
                priority=priority,
                ttl=ttl,
                recipient=recipient,
                schema=schema,
                envelope=envelope,
                retry=retry,
            )
        )

    def publish_many(
        self,
        topic: str,
        payloads: Iterable[Payload],
        *,
        qos: int = 1,
        recipient: PublicKey | None = None,
        schema: str = "",
        envelope: bool = False,
        retry: bool = False,
    ) -> list[Receipt | PublishError]:
        """Publish messages in one pipeline; return a receipt or an error for each, in order."""
        return self._loop.run(
            self._client.publish_many(
                topic,
                payloads,
                qos=qos,
                recipient=recipient,
                schema=schema,
                envelope=envelope,
                retry=retry,
            )
        )

    def subscribe(
        self,
        topic: str,
        *,
        qos: int = 1,
        prefetch: int = surface.PREFETCH_DEFAULT,
        subscription_id: int | None = None,
        keep: bool | None = None,
        on_gap: surface.OnGap | None = None,
        schema: str = "",
        envelope: bool = False,
    ) -> Subscription:
        """Return a subscription, to be entered with `with` or opened."""

        async def subscribe() -> surface.Subscription:
            return self._client.subscribe(
                topic,
                qos=qos,
                prefetch=prefetch,
                subscription_id=subscription_id,
                keep=keep,
                on_gap=on_gap,
                schema=schema,
                envelope=envelope,
            )

        return Subscription(self._loop, self._loop.run(subscribe()))

    def declare_queue(
        self,
        name: str,
        *,
        mode: str | None = None,
        max_size: int | None = None,
        ttl: float | None = None,
        dead_letters: bool | None = None,
        dead_letter_name: str | None = None,
        overflow: str | None = None,
        max_attempts: int | None = None,
        durable: bool | None = None,
    ) -> QueueInfo:
        """Make a queue, and return it as it is now. Raises as the asynchronous one does."""
        return self._loop.run(
            self._client.declare_queue(
                name,
                mode=mode,
                max_size=max_size,
                ttl=ttl,
                dead_letters=dead_letters,
                dead_letter_name=dead_letter_name,
                overflow=overflow,
                max_attempts=max_attempts,
                durable=durable,
            )
        )

    def queue_info(self, name: str) -> QueueInfo | None:
        """Return what the broker says about a queue; None when there is none of that name."""
        return self._loop.run(self._client.queue_info(name))

    def list_queues(self) -> list[str]:
        """Return the names of the queues that we may see."""
        return self._loop.run(self._client.list_queues())

    def delete_queue(self, name: str) -> None:
        """Delete a queue with all that waits in it; its dead letters stay."""
        self._loop.run(self._client.delete_queue(name))

    def stats(self) -> Stats:
        """Return the broker's numbers."""
        return self._loop.run(self._client.stats())

    def ping(self) -> float:
        """Return the seconds of a round trip, every earlier publish's commit included."""
        return self._loop.run(self._client.ping())

    def drain(self) -> None:
        """Take and publish nothing new; wait until everything under way is confirmed."""
        self._loop.run(self._client.drain())

    def close(self) -> None:
        """Close subscriptions and connections, and end the thread; again does nothing."""
        try:
            self._loop.run(self._client.close())
        except Closed:
            return
        self._loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _blocking(connect: Callable[P, surface.Connecting]) -> Callable[P, Client]:
    def blocking(*arguments: P.args, **options: P.kwargs) -> Client:
        connecting = connect(*arguments, **options)

        async def work() -> surface.Client:
            return await connecting

        loop = LoopThread()
        try:
            return Client(loop, loop.run(work()))
        except BaseException:
            loop.stop()
            raise

    blocking.__doc__ = f"Connect and block until it is done.\n\n{connect.__doc__}"
    return blocking


connect = _blocking(braidmq.client.connect)
