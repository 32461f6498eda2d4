"""`braidmq discover`: list the Qumbed relays that announce themselves on the local network.

Announcements are not authenticated: anyone on the network may send them, so check a relay's
certificate and key before trusting it.
"""

import asyncio
import sys
from typing import Annotated, Final

from typer import Option

from braidmq.base.extras import needing
from braidmq.cli.terminal import AsJson, print_rows

DEFAULT_TIMEOUT_S: Final = 3.0
"""An answer takes a tenth of a second; a lost query is repeated after one second."""

_COLUMNS: Final = ("node", "address", "public_key", "topics")


def discover(
    *,
    timeout: Annotated[
        float, Option(min=0.1, max=3_600, metavar="SECONDS", help="How long to listen.")
    ] = DEFAULT_TIMEOUT_S,
    count: Annotated[int | None, Option(min=1, help="Stop after this many relays.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the Qumbed relays that announce themselves over mDNS."""
    with needing("server", "braidmq discover"):
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
        hint = f"no relay heard within {timeout:g} s; `braidmq serve --mdns` announces one"
        print(hint, file=sys.stderr)
