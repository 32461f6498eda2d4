"""`braidmq topics`: list the topics of a running broker, over HTTP."""

from typing import Final

from braidmq.cli.api import Url, api_at
from braidmq.cli.broker.config import AsJson
from braidmq.cli.tables import print_rows

_COLUMNS: Final = ("name", "messages", "last_offset", "subscriptions")


def topics(url: Url = None, as_json: AsJson = False) -> None:
    """List the topics that the key may see."""
    rows = list(api_at(url).rows("/api/topics", "topics"))
    print_rows(rows, _COLUMNS, as_json=as_json)
