"""The demo's counts: what each consumer has handled, and whether that is all of it."""

from collections import Counter
from dataclasses import dataclass, field

import typer

from braidmq.cli.terminal import styled


@dataclass
class Account:
    """What one consumer has handled; messages are identified by the number in their payload."""

    name: str
    handled: set[int] = field(default_factory=set)
    deliveries: int = 0

    @property
    def again(self) -> str:
        """The number of redeliveries, as text."""
        return f"{self.deliveries - len(self.handled):,} redelivered"


@dataclass(frozen=True)
class Line:
    """One line of the summary: two collections that must be equal; lists also in order."""

    what: str
    expected: set[int] | list[int]
    found: set[int] | list[int]
    note: str = ""

    @property
    def agrees(self) -> bool:
        """Whether nothing is missing, extra or out of order."""
        return self.expected == self.found

    @property
    def verdict(self) -> str:
        """The verdict, as text."""
        if self.agrees:
            return "ok"
        expected, found = Counter(self.expected), Counter(self.found)
        missing, extra = (expected - found).total(), (found - expected).total()
        if not missing and not extra:
            return "NO: out of order"
        return f"NO: {missing:,} missing, {extra:,} extra"


def summarize(lines: list[Line]) -> bool:
    """Print the summary; return whether all counts agree."""
    print(f"\n{'':30}{'expected':>9} {'found':>9}")
    for line in lines:
        colour = typer.colors.GREEN if line.agrees else typer.colors.RED
        numbers = f"{len(line.expected):9,} {len(line.found):9,}"
        note = f"  ({line.note})" if line.note else ""
        print(f"{line.what:30}{numbers}  {styled(line.verdict, fg=colour)}{note}")
    print(
        "\nDuplicates and redeliveries are at-least-once delivery: in doubt, both ends repeat."
    )
    if all(line.agrees for line in lines):
        verdict = "The counts agree: nothing that was confirmed is missing."
        print(styled(verdict, fg=typer.colors.GREEN, bold=True))
        return True
    print(styled("THE COUNTS DO NOT AGREE.", fg=typer.colors.RED, bold=True))
    return False
