"""The door of HTTP."""

import re
from typing import Any, Final
from urllib.parse import quote

from tests.integration.permissions.doors import FORBIDDEN, Door, door_of
from tests.integration.permissions.oracle import ABSENT
from tests.integration.permissions.owner import OF_OWNER, Http, Owner
from tests.integration.vibe.peer import DELETE_QUEUE

NOT_FOUND: Final = 404
OPEN_PATHS: Final = {
    "GET /api/overview",
    "GET /api/log",
    "GET /api/events",
    "GET /api/session",
    "GET /api/openapi.json",
}
"""What every key may ask: numbers of the broker, and what it itself is; no names."""


class OverHttp:
    """The verbs of HTTP; *asked* are all requests, as `METHOD path`."""

    def __init__(self, http: Http, owner: Owner, principal: str, asked: set[str]) -> None:
        self._http = http
        self._owner = owner
        self._principal = principal
        self._asked = asked

    async def _ask(self, method: str, path: str, **body: object) -> tuple[int, dict[str, Any]]:
        self._asked.add(f"{method} {path.partition('?')[0]}")
        return await self._http.ask(method, path, **body)

    async def _is_allowed(self, method: str, path: str, **body: object) -> bool:
        status, answer = await self._ask(method, path, **body)
        is_there = ABSENT not in path
        usual = {200, 201, 409} if is_there else {NOT_FOUND}  # 409: other options
        assert status in {*usual, FORBIDDEN}, (method, path, status, answer)
        return status != FORBIDDEN

    async def _listed(self, path: str, rows: str, field: str = "name") -> list[str]:
        status, answer = await self._ask("GET", path)
        assert 200 == status, answer
        return [row[field] for row in answer[rows]]

    # With a name.

    async def publish(self, name: str) -> bool:
        return await self._is_allowed("POST", f"/api/topics/{quote(name)}/messages", payload=1)

    async def subscribe(self, name: str) -> bool:
        return await self._is_allowed("GET", f"/api/topics/{quote(name)}/messages?limit=1")

    async def message(self, name: str) -> bool:
        offset = 1 if name == ABSENT else await self._owner.make_message(name)
        return await self._is_allowed("GET", f"/api/topics/{quote(name)}/messages/{offset}")

    async def topic(self, name: str) -> bool:
        return await self._is_allowed("GET", f"/api/topics/{quote(name)}")

    async def delete_topic(self, name: str) -> bool:
        await self._owner.vibe.ask(DELETE_QUEUE, name)  # which keeps its topic from going
        path = f"/api/topics/{quote(name)}?force=true"
        status, answer = await self._ask("DELETE", path)
        assert status in {200, FORBIDDEN}, answer
        await self._owner.make_topic(name)
        return status != FORBIDDEN

    async def create(self, name: str) -> bool:
        return await self._is_allowed("POST", "/api/queues", name=name)

    async def lead(self, names: str) -> bool:
        name, letters = names.split(" to ")
        options = {"name": name, "deadLetterQueueName": letters}
        return await self._is_allowed("POST", "/api/queues", **options)

    async def delete(self, name: str) -> bool:
        is_allowed = await self._is_allowed("DELETE", f"/api/queues/{quote(name)}")
        if is_allowed:
            await self._owner.vibe.create(name)
        return is_allowed

    async def info(self, name: str) -> bool:
        return await self._is_allowed("GET", f"/api/queues/{quote(name)}")

    async def purge(self, name: str) -> bool:
        return await self._is_allowed("POST", f"/api/queues/{quote(name)}/purge")

    async def letters(self, name: str) -> bool:
        return await self._is_allowed("GET", f"/api/dead-letters?queue=dlq.{quote(name)}")

    async def replay(self, name: str) -> bool:
        await self._owner.make_letter(name)
        path = "/api/dead-letters/replay"
        return await self._is_allowed("POST", path, queue=f"dlq.{name}", count=1)

    async def replay_one(self, name: str) -> bool:
        offset = await self._owner.make_letter(name)
        path = "/api/dead-letters/replay"
        return await self._is_allowed("POST", path, queue=f"dlq.{name}", offset=offset)

    # Without one.

    async def reload(self) -> bool:
        return await self._is_allowed("POST", "/api/reload")

    async def keys(self) -> bool:
        return await self._is_allowed("GET", "/api/keys")

    async def verify(self) -> bool:
        return await self._is_allowed("POST", "/api/log/verify")

    async def close(self) -> bool:
        status, _ = await self._ask("DELETE", f"/api/connections/{10**9}")
        return status != FORBIDDEN

    async def remove_cursor(self) -> bool:
        is_allowed = await self._is_allowed("DELETE", f"/api/cursors/{quote(OF_OWNER)}")
        if is_allowed:
            await self._owner.make_cursor()
        return is_allowed

    async def _shows_others(self, rows: str, path: str = "") -> bool:
        shown = await self._listed(path or f"/api/{rows}", rows, "principal")
        return bool(set(shown) - {self._principal})

    async def others_connections(self) -> bool:
        return await self._shows_others("connections")

    async def others_clients(self) -> bool:
        return await self._shows_others("clients")

    async def others_cursors(self) -> bool:
        return await self._shows_others("cursors")

    async def others_quotas(self) -> bool:
        return await self._shows_others("principals", "/api/quotas")

    # Lists.

    async def sees(self) -> list[str]:
        return await self._listed("/api/topics", "topics")

    async def sees_queue(self) -> list[str]:
        return await self._listed("/api/queues", "queues")

    async def sees_letters(self) -> list[str]:
        return await self._listed("/api/dead-letters", "queues", "queue")

    async def others_subscription(self) -> list[str]:
        _, answer = await self._ask("GET", "/api/subscriptions")
        shown = answer["subscriptions"]
        return [row["topic"] for row in shown if row["principal"] != self._principal]

    def door(self) -> Door:
        return door_of(
            self,
            "publish subscribe message topic delete_topic create lead delete info purge "
            "letters replay replay_one",
            "reload keys verify close remove_cursor "
            "others_connections others_clients others_cursors others_quotas",
            "sees sees_queue sees_letters others_subscription",
        )


def untried(description: dict[str, Any], asked: set[str]) -> set[str]:
    """Return the operations of an OpenAPI description that no request of *asked* was for."""
    operations = {
        f"{method.upper()} {path}"
        for path, methods in description["paths"].items()
        for method in methods
        if path.startswith("/api/")
    }
    return {
        operation
        for operation in operations - OPEN_PATHS
        if not any(re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", operation), one) for one in asked)
    }
