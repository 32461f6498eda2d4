"""A flood of wrong passwords: real sign-ins go on beside it, and it learns nothing."""

import asyncio
from pathlib import Path
from typing import Final

import pytest

from tests.integration.served import Served, served
from tests.integration.vibe.peer import CONNECT_ACK, ERROR
from tests.integration.vibe_peer import CREATE_USER, connect, parse, request

pytestmark = pytest.mark.asyncio

FLOOD: Final = 90
LIMITED: Final = "RATE_LIMITED"


class Caller:
    """One connection that signs in once; it notes the order in which all are answered."""

    def __init__(self, order: list[str], label: str) -> None:
        self.order = order
        self.label = label
        self.code = ""

    async def sign_in(self, broker: Served, go: asyncio.Event, name: str, word: str) -> int:
        """Connect, wait for the start, and return the kind of the answer."""
        host, _, port = broker.facts()["vibe"].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await go.wait()
        writer.write(connect(authUsername=name, authPassword=word))
        head = await reader.readexactly(5)
        body = await reader.readexactly(int.from_bytes(head[:4], "big"))
        self.order.append(self.label)
        (answer,) = parse(head + body)
        self.code = answer.error_code
        writer.close()
        return answer.kind


async def create_users(broker: Served, *names: str) -> None:
    host, _, port = broker.facts()["vibe"].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    users = [f'{{"username": "{name}", "password": "right"}}'.encode() for name in names]
    writer.write(connect())
    for number, user in enumerate(users):
        writer.write(request(CREATE_USER, str(number), payload=user))
    for _ in range(1 + len(users)):
        head = await reader.readexactly(5)
        body = await reader.readexactly(int.from_bytes(head[:4], "big"))
        assert ERROR != parse(head + body)[0].kind
    writer.close()


async def test_a_real_sign_in_succeeds_beside_a_flood(tmp_path: Path) -> None:
    """Though 90 wrong ones of the same address, some under names that exist, were first.

    The order is what counts: it is answered while most of the others still wait.
    """
    async with served(tmp_path, "--blip", "off", "--qumbed", "off") as broker:
        await broker.ready()
        await create_users(broker, "ada", "bob")
        order: list[str] = []
        go = asyncio.Event()
        names = ["ada" if number % 9 == 0 else f"stranger{number}" for number in range(FLOOD)]
        flood = [Caller(order, f"{number} {name}") for number, name in enumerate(names)]
        wrong = [
            asyncio.create_task(caller.sign_in(broker, go, name, "wrong"))
            for caller, name in zip(flood, names, strict=True)
        ]
        late = asyncio.Event()
        real = Caller(order, "real")
        signing_in = asyncio.create_task(real.sign_in(broker, late, "bob", "right"))
        await asyncio.sleep(0)  # every caller has begun to connect
        go.set()
        await asyncio.sleep(0)
        late.set()

        assert CONNECT_ACK == await signing_in
        answered_before = order.index("real")
        assert FLOOD * [ERROR] == await asyncio.gather(*wrong)
        assert answered_before < FLOOD // 2, order
        # Which of them were refused depends on their order, not on their names.
        known = {caller.code for caller in flood if caller.label.endswith(" ada")}
        unknown = {caller.code for caller in flood if "stranger" in caller.label}
        assert {"AUTH_FAILED", LIMITED} == unknown
        assert known <= unknown
        assert 0 == await broker.end()
