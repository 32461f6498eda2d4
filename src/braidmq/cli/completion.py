"""The rest of a name, when a shell asks for it: the names that the broker knows.

A key is pressed and somebody waits: it gets one short question, and when that fails, nothing.
"""

from typing import Final
from urllib.parse import quote, urlencode

import typer

from braidmq.base.errors import BraidError
from braidmq.cli.api import api_at

COMPLETE_S_MAX: Final = 0.5
NAMES_MAX: Final = 100


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return topics that begin so."""
    return _names(context, incomplete, "topics")


def queue_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return queues that begin so."""
    return _names(context, incomplete, "queues")


def _names(context: typer.Context, incomplete: str, kind: str) -> list[str]:
    query = urlencode({"search": incomplete, "limit": NAMES_MAX}, quote_via=quote)
    try:
        api = api_at(context.params.get("url"))
        page = api.ask("GET", f"/api/{kind}?{query}", timeout_s=COMPLETE_S_MAX)
        found = [str(row.get("name", "")) for row in api.rows_in(page, kind)]
    except BraidError:
        return []
    # A name with a blank or a control character cannot be typed as it is.
    return [name for name in found if name.startswith(incomplete) and _is_plain(name)]


def _is_plain(name: str) -> bool:
    return name.isprintable() and not any(c in name for c in " \t'\"\\$`:")
