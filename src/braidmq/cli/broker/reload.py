"""`braidmq reload`: have a running broker read its keys, users, certificates and schemas."""

from braidmq.base.counts import counted
from braidmq.base.printable import printable
from braidmq.cli.api import Url, api_at
from braidmq.cli.terminal import AsJson, print_done


def reload(url: Url = None, *, as_json: AsJson = False) -> None:
    """Have the broker read its keys, certificates and schemas again.

    Users are read again, too. Keys and users that are gone lose their connections; a file that
    cannot be used changes nothing.
    """
    api = api_at(url)
    answer = api.ask("POST", "/api/reload")
    closed = counted(api.number_in(answer, "connections_closed"), "connection")
    restart = answer.get("restart")
    done = f"reloaded; {closed} of revoked keys and users closed"
    if isinstance(restart, list) and restart:
        done += "; these need a restart: " + printable(", ".join(map(str, restart)))
    print_done(answer, done, as_json=as_json)
