"""The metrics as text: explained, safe to look at, one snapshot for each scrape."""

import re

from braidmq.admin.http.exposition import MetricsPage
from braidmq.admin.metrics import MetricValues


def test_a_label_does_not_control_a_terminal() -> None:
    """The name of an old cursor may hold anything, and operators look with `curl`."""
    text = MetricsPage(lambda: MetricValues(cursor_lag={"\x1b[2J\u202e": 1})).render().decode()

    assert r'cursor="\\x1b[2J\\u202e"' in text
    assert text.replace("\n", "").isprintable()


def test_every_metric_has_help_and_a_type() -> None:
    """The page explains itself."""
    text = MetricsPage(lambda: MetricValues(connections={"blip": 1})).render().decode()
    named = set(re.findall(r"^([a-z_]+)[ {]", text, re.MULTILINE))
    named -= {name for name in named if name.endswith(("_bucket", "_count", "_sum"))}

    assert named <= set(re.findall(r"^# HELP (\S+) \S.*$", text, re.MULTILINE))
    assert named <= set(
        re.findall(r"^# TYPE (\S+) (?:counter|gauge|histogram)$", text, re.MULTILINE)
    )


def test_one_scrape_is_one_snapshot() -> None:
    """All lines of a response belong to one moment, and registering takes no snapshot."""
    taken: list[MetricValues] = []

    def measure() -> MetricValues:
        taken.append(MetricValues())
        return taken[-1]

    page = MetricsPage(measure)
    before = len(taken)
    page.render()

    assert (0, 1) == (before, len(taken))
