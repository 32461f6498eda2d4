"""Names that a declaration leads to are judged as if its declarer used them itself.

A user with grants on `m.*` must not write into `secret.q` by declaring it as the place of its
dead letters, nor lift the limits of that queue; on every way in that declares queues.
"""

import asyncio
import http.client
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from braidmq.cli.main import main
from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import PATIENCE_S, broker_at, key_config
from tests.integration.vibe.peer import CREATE_QUEUE, ERROR, PUBLISH
from tests.integration.vibe_peer import CREATE_USER, GRANT_PERMISSION, Peer, ack, connected

pytestmark = pytest.mark.asyncio

MANAGER: Final = "manager"
"""An administrator that may publish to `m.*` only."""

SECRET: Final = "secret.q"

GRANTS: Final = {
    "m.*": ["Publish", "Subscribe", "CreateQueue", "DeleteQueue"],
    "w.*": ["Publish"],
    "c.*": ["CreateQueue"],
}


@asynccontextmanager
async def manned() -> AsyncIterator[tuple[RunningBroker, Peer]]:
    """Run a broker with a bounded queue and a user that has nothing to do with it."""
    keys = [key_config("manager", MANAGER, publish=["m.*"], subscribe=["m.*"], admin=True)]
    async with broker_at(auth={"keys": keys}) as running, connected(running) as root:
        await root.create(SECRET, maxQueueSize="2", overflowStrategy="DropNewest")
        await root.administer(CREATE_USER, username="mia", password="pw")
        for pattern, operations in GRANTS.items():
            await root.administer(
                GRANT_PERMISSION, username="mia", queuePattern=pattern, operations=operations
            )
        yield running, root


async def declared(peer: Peer, name: str, **options: str) -> tuple[str, str]:
    """Declare a queue; return the error's code and text, empty if there was none."""
    answer = await peer.ask(CREATE_QUEUE, name, headers=options)
    return answer.error if answer.kind == ERROR else ("", "")


async def posted(broker: RunningBroker, path: str, key: str, **body: object) -> tuple[int, str]:
    """Post JSON; return the status and the error's text."""

    def post() -> tuple[int, str]:
        connection = http.client.HTTPConnection(*broker.address("http"), timeout=PATIENCE_S)
        try:
            headers = {"Authorization": f"Bearer {key}"}
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read()).get("error", "")
        finally:
            connection.close()

    return await asyncio.to_thread(post)


async def still_bounded(root: Peer) -> bool:
    """Return whether the secret queue refuses its third message."""
    answers = [await root.ask(PUBLISH, SECRET, payload=b"1") for _ in range(3)]
    return ERROR == answers[-1].kind


async def test_a_user_cannot_send_its_dead_letters_to_a_foreign_queue() -> None:
    """By header or payload, in use or not, and however the queue was declared before."""
    refused = ("AUTH_FAILED", "not allowed")
    async with manned() as (broker, root):
        async with connected(broker, authUsername="mia", authPassword="pw") as mia:
            named = [
                await declared(mia, f"m.{number}", deadLetterQueueName=name, **options)
                for number, (name, options) in enumerate(
                    [
                        (SECRET, {}),
                        (SECRET, {"enableDeadLetterQueue": "false"}),
                        ("secret.new", {}),
                        ("dlq.secret.q", {}),
                        ("w.q", {}),  # may publish there, and not create it
                        ("c.q", {}),  # may create it, and not publish there
                    ]
                )
            ]
            payload = json.dumps({"deadLetterQueueName": SECRET}).encode()
            by_payload = await mia.ask(CREATE_QUEUE, "m.8", payload=payload)
            allowed = [
                await declared(mia, "m.q"),
                await declared(mia, "m.r", deadLetterQueueName="dlq.m.r"),
                await declared(mia, "m.s", deadLetterQueueName="m.graves"),
                await declared(mia, "dlq.m.t", deadLetterQueueName=SECRET),
            ]
            again = await declared(mia, "m.q", deadLetterQueueName=SECRET)

        assert 6 * [refused] == named
        assert refused == by_payload.error
        assert 3 * [("", "")] + [refused] == allowed  # no grant for the name itself
        assert refused == again
        assert await still_bounded(root)


async def test_an_administrator_names_only_queues_that_it_may_publish_to() -> None:
    """Over HTTP and from the command line; the error names the option and the permission."""
    async with manned() as (broker, root):
        options = {"deadLetterQueueName": SECRET}
        refused = await posted(broker, "/api/queues", MANAGER, name="m.q", **options)
        fine = await posted(
            broker, "/api/queues", MANAGER, name="m.q", deadLetterQueueName="m.graves"
        )
        host, port = broker.address("http")
        url = f"http://{MANAGER}@{host}:{port}"
        flags = ["--dead-letter-queue", SECRET, "--url", url]
        code = await asyncio.to_thread(main, ["queue", "create", "m.r", *flags])

        problem = "deadLetterQueueName: this API key lacks the permission publish on secret.q"
        assert (403, problem) == refused
        assert 201 == fine[0]
        assert 0 != code
        assert {} == await root.info("m.r")
        assert await still_bounded(root)


async def test_a_replay_publishes_where_its_letters_came_from() -> None:
    """So it needs that permission; the letters stay when it is missing."""
    async with manned() as (broker, root):
        await root.create("secret.r", maxRetryAttempts="1")
        for queue in ("secret.r", "m.q"):
            await root.publish_all(queue, [f"to {queue}"])
            await root.subscribe(queue)
            await root.deliveries(1)
            root.send(ack(f"to {queue}", queue, result="reject"))
            await root.fence()
        replays = [
            await posted(broker, "/api/dead-letters/replay", MANAGER, queue=f"dlq.{name}")
            for name in ("secret.r", "m.q")
        ]

        assert [403, 200] == [status for status, _ in replays]
        assert "lacks the permission publish on secret.r" in replays[0][1]
        assert 1 == (await root.info("dlq.secret.r"))["messageCount"]
        assert 0 == (await root.info("dlq.m.q"))["messageCount"]
