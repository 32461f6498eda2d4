"""The demo's third strand: meters on Qumbed, and the one office that can read their bills.

meters -- bills, sealed for the office, on Qumbed ---+--> office, on Qumbed: decrypts them
                                                     +--> vault, on Blip: sees ciphertext
       -- alarms, for all, on Qumbed ----------------+--> siren, on Blip
                                                     +--> guard, on Vibe
readings, of Blip ----- sealed by the broker --------+--> screen, on Qumbed
commands, of Vibe ------ sealed by the broker -------+--> screen, on Qumbed
"""

import asyncio
import json
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from braidmq.cli.demo.count import Account, Line

if TYPE_CHECKING:  # the client library is not needed to print --help
    from braidmq.client import Client, Message, Subscription

BILLS: Final = "demo.bills"
ALARMS: Final = "demo.alarms"
BILLS_COUNT: Final = 40
ALARMS_COUNT: Final = 40
PAUSE_S: Final = 0.15
KEEPALIVE_S: Final = 1.0
"""Short, because UDP does not report that a broker was killed: only silence does."""

_OWING: Final = b"owing"
"""Appears in the plaintext of every bill."""


class Meters:
    """Publishers and consumers on Qumbed, and the other consumers of their messages."""

    def __init__(self, say: Callable[[str, str], None]) -> None:
        self._say = say
        self._meters: Client | None = None
        self._office: Client | None = None
        self._screen: Client | None = None
        self._office_key = b""
        self.bills: set[int] = set()  # confirmed, as are the alarms
        self.alarms: set[int] = set()
        self.office = Account("office")
        self.vault_boxes: set[bytes] = set()
        self.readable_boxes = 0  # of those in the vault
        self.siren = Account("siren")
        self.guard = Account("guard")
        self.screen_readings = Account("screen")
        self.screen_commands = Account("screen")

    async def connect(self, stack: AsyncExitStack, url: str) -> None:
        """Connect the clients on Qumbed; the office trusts only the meters' key."""
        import braidmq
        from braidmq.client.qumbed import KeyPair

        meters, office = KeyPair.generate(), KeyPair.generate()
        self._office_key = office.public_key
        self._meters, self._office, self._screen = [
            await stack.enter_async_context(connecting)
            for connecting in (
                braidmq.connect(url, private_key=meters, keepalive=KEEPALIVE_S),
                braidmq.connect(
                    url, private_key=office, trust=meters.public_key, keepalive=KEEPALIVE_S
                ),
                braidmq.connect(url, keepalive=KEEPALIVE_S),
            )
        ]

    async def subscribe(
        self,
        stack: AsyncExitStack,
        group: asyncio.TaskGroup,
        *,
        blip: "Client",
        vibe: "Client",
        readings: str,
        commands: str,
    ) -> list["Subscription"]:
        """Subscribe all consumers, for as long as *stack* is open."""
        assert self._office is not None
        assert self._screen is not None
        parties: Iterable[tuple[Client, str, Callable[[Message], None]]] = (
            (self._office, BILLS, _by_number(self.office)),
            (self._screen, readings, _by_number(self.screen_readings)),
            (self._screen, commands, _by_number(self.screen_commands)),
            (blip, BILLS, self._keep_box),
            (blip, ALARMS, _by_number(self.siren)),
            (vibe, ALARMS, _by_number(self.guard)),
        )
        entered = []
        for client, topic, handle in parties:
            messages = await stack.enter_async_context(client.subscribe(topic))
            group.create_task(_consume(messages, handle))
            entered.append(messages)
        self._say("Qumbed", "meters publish bills encrypted for an office, and alarms for all")
        return entered

    async def publish(self) -> None:
        """Publish bills that only the office can read, and alarms, in turn."""
        meters = self._meters
        assert meters is not None
        for number in range(1, BILLS_COUNT + 1):
            bill = json.dumps({"number": number, _OWING.decode(): number * 10}).encode()
            # Every publish has an id, so a retry is stored once.
            await meters.publish(
                BILLS, bill, recipient=self._office_key, envelope=True, retry=True
            )
            self.bills.add(number)
            alarm = json.dumps({"number": number, "level": "high"}).encode()
            await meters.publish(ALARMS, alarm, retry=True)
            self.alarms.add(number)
            await asyncio.sleep(PAUSE_S)
        self._say(
            "meters", f"all {len(self.bills)} bills and {len(self.alarms)} alarms are confirmed"
        )

    def is_done(self, readings: set[int], commands: set[int]) -> bool:
        """Return whether every consumer has handled every message."""
        return (
            self.bills == self.office.handled
            and len(self.vault_boxes) >= len(self.bills)
            and self.alarms == self.siren.handled
            and self.alarms == self.guard.handled
            and readings <= self.screen_readings.handled
            and commands <= self.screen_commands.handled
        )

    def lines(self, readings: set[int], commands: set[int]) -> list[Line]:
        """Return the lines of the summary."""
        all_bills = set(range(1, BILLS_COUNT + 1))
        all_alarms = set(range(1, ALARMS_COUNT + 1))
        boxes = set(range(1, len(self.vault_boxes) + 1))
        opened = f"{self.office.again}; end-to-end encrypted"
        return [
            Line("bills confirmed, on Qumbed", all_bills, self.bills),
            Line("  office, on Qumbed, decrypted", self.bills, self.office.handled, opened),
            Line("  vault, on Blip, encrypted", self.bills, boxes),
            Line("  of them readable", set(), set(range(self.readable_boxes))),
            Line("alarms confirmed, on Qumbed", all_alarms, self.alarms),
            Line("  siren, on Blip", self.alarms, self.siren.handled, self.siren.again),
            Line("  guard, on Vibe", self.alarms, self.guard.handled, self.guard.again),
            Line(
                "readings on Qumbed's screen",
                readings,
                self.screen_readings.handled,
                self.screen_readings.again,
            ),
            Line(
                "commands on Qumbed's screen",
                commands,
                self.screen_commands.handled,
                self.screen_commands.again,
            ),
        ]

    def _keep_box(self, message: "Message") -> None:
        self.vault_boxes.add(message.payload)
        self.readable_boxes += _OWING in message.payload


def _by_number(account: Account) -> "Callable[[Message], None]":
    def handle(message: "Message") -> None:
        account.deliveries += 1
        account.handled.add(json.loads(message.payload)["number"])

    return handle


async def _consume(messages: "Subscription", handle: "Callable[[Message], None]") -> None:
    async for message in messages:
        async with message.process():
            handle(message)
