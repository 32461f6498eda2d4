"""A source for the admin tests: it says what a test has put into it."""

from collections.abc import Callable

from braidmq.admin.app import TopicSnapshot, TopicsPage
from braidmq.admin.health import Readiness
from braidmq.admin.metrics import MetricValues
from braidmq.broker.authorize import Principal

ADMIN_KEY = "admin-key"
ORDERS_KEY = "orders-key"


class FakeSource:
    """What a broker would say, as plain attributes."""

    def __init__(self) -> None:
        self.ready = Readiness(ready=True)
        self.values = MetricValues()
        self.metrics_asked = 0
        self.names: list[str] = []
        self.broken = False
        self.principals = {
            ADMIN_KEY: Principal("ops", publish=[], subscribe=[], admin=True),
            ORDERS_KEY: Principal("orders", publish=["in.*"], subscribe=["orders.*"]),
        }

    def readiness(self) -> Readiness:
        return self.ready

    def metrics(self) -> MetricValues:
        self.metrics_asked += 1
        return self.values

    def principal(self, key: str) -> Principal | None:
        return self.principals.get(key)

    def overview(self) -> dict[str, object]:
        if self.broken:
            raise RuntimeError("a secret inside")
        return {"topics": len(self.names)}

    def topics(self, *, after: str, limit: int, visible: Callable[[str], bool]) -> TopicsPage:
        names = sorted(name for name in self.names if name > after and visible(name))
        rows = [
            TopicSnapshot(name, messages=1, last_offset=2, subscriptions=3) for name in names
        ]
        return TopicsPage(rows[:limit], more=len(rows) > limit)
