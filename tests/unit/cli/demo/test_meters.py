"""The demo's meters: what is missing or readable is a disagreement."""

from collections.abc import Callable

import pytest

from braidmq.cli.demo.meters import ALARMS_COUNT, BILLS_COUNT, Meters

READINGS = {1, 2, 3}
COMMANDS = {1, 2}


def complete_meters() -> Meters:
    """Return meters in which every consumer has every message."""
    meters = Meters(lambda who, what: None)
    bills = set(range(1, BILLS_COUNT + 1))
    alarms = set(range(1, ALARMS_COUNT + 1))
    meters.bills, meters.alarms = set(bills), set(alarms)
    meters.office.handled = set(bills)
    meters.vault_boxes = {bytes([number]) for number in bills}
    meters.siren.handled, meters.guard.handled = set(alarms), set(alarms)
    meters.screen_readings.handled = set(READINGS)
    meters.screen_commands.handled = set(COMMANDS)
    return meters


def disagreeing(meters: Meters) -> list[str]:
    lines = meters.lines(READINGS, COMMANDS)
    return [line.what.strip() for line in lines if not line.agrees]


def test_all_lines_agree_when_every_consumer_has_every_message() -> None:
    """Then there is nothing more to wait for."""
    meters = complete_meters()

    assert [] == disagreeing(meters)
    assert meters.is_done(READINGS, COMMANDS)


CHANGES: dict[str, Callable[[Meters], object]] = {
    "office, on Qumbed, decrypted": lambda meters: meters.office.handled.pop(),
    "vault, on Blip, encrypted": lambda meters: meters.vault_boxes.pop(),
    "siren, on Blip": lambda meters: meters.siren.handled.pop(),
    "guard, on Vibe": lambda meters: meters.guard.handled.pop(),
    "readings on Qumbed's screen": lambda meters: meters.screen_readings.handled.pop(),
    "commands on Qumbed's screen": lambda meters: meters.screen_commands.handled.pop(),
}


@pytest.mark.parametrize("what", CHANGES)
def test_one_missing_message_is_a_disagreement(what: str) -> None:
    """Wherever it is missing, the line that counts it says so, and the demo waits for it."""
    meters = complete_meters()
    CHANGES[what](meters)

    assert [what] == disagreeing(meters)
    assert not meters.is_done(READINGS, COMMANDS)


def test_a_box_that_can_be_read_is_a_disagreement() -> None:
    """What is sealed for the office must not be readable elsewhere."""
    meters = complete_meters()
    meters.readable_boxes = 1

    assert ["of them readable"] == disagreeing(meters)
