"""`braidmq discover`: which Qumbed relays announce themselves on the local network.

What is printed is what somebody claims; a relay's certificate and key are to be checked.
"""

import asyncio
import sys
from typing import Annotated, Final

import typer

from braidmq.cli.broker.config import AsJson
from braidmq.cli.tables import print_rows

DEFAULT_TIMEOUT_S: Final = 3.0
"""An answer takes a tenth of a second; one that was lost is asked for again after one."""

_COLUMNS: Final = ("node", "address", "public_key", "topics")


def discover(
    *,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=3_600, metavar="SECONDS", help="How long to listen.")
    ] = DEFAULT_TIMEOUT_S,
    count: Annotated[
        int | None, typer.Option(min=1, help="End as soon as so many are heard.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the Qumbed relays that announce themselves by mDNS."""
    from braidmq.server.strands.qumbed.mdns import find

    rows = [
        {
            "node": node.name,
            "address": node.addresses[0] if node.addresses else None,
            "addresses": list(node.addresses),
            "public_key": node.public_key,
            "topics": list(node.topics),
        }
        for node in asyncio.run(find(timeout, count=count))
    ]
    print_rows(rows, _COLUMNS, as_json=as_json)
    if not rows:
        hint = f"none heard in {timeout:g} s: 'braidmq serve --mdns' announces a relay"
        print(hint, file=sys.stderr)
