"""The HTTP page lists every request with its parameters, and no other."""

import re
from typing import Final

import msgspec

from braidmq.admin.http.app import endpoints_of
from braidmq.admin.messages import ShownMessage
from braidmq.admin.publishing import Posted
from tests.docs.test_snippets import read
from tests.unit.admin.world import World

REQUEST: Final = re.compile(r"`(GET|POST|DELETE) (/[^`\s?]*)(?:\?([^`\s]*))?`")


def documented() -> dict[tuple[str, str], set[str]]:
    """Return the requests on the pages with their query parameters."""
    found: dict[tuple[str, str], set[str]] = {}
    for document in ("docs/reference/http.md", "docs/operations.md"):
        for method, path, query in REQUEST.findall(read(document)):
            plain = re.sub(r"\{\w+\}|(?<=/)NAME", "{}", path)
            names = {part.partition("=")[0] for part in query.split("&") if part}
            found.setdefault((method, plain), set()).update(names)
    return found


def test_every_request_is_documented_with_its_parameters() -> None:
    """As the endpoints declare them, like the OpenAPI description."""
    known = {
        (endpoint.method, re.sub(r"\{\w+\}", "{}", endpoint.path)): {
            parameter.name for parameter in endpoint.query
        }
        for endpoint in endpoints_of(World(recovered=False).status, loopback=True)
    }

    assert known == documented()


def test_the_fields_of_a_message_match_the_code() -> None:
    """For shown and for posted messages: every field, and no other."""
    text = read("docs/reference/http.md")
    text = text[text.index("| field |") : text.index("So what GET answers")]
    rows = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)

    for message in (ShownMessage, Posted):
        assert sorted(rows) == sorted(field.name for field in msgspec.structs.fields(message))
