"""Metrics in Prometheus text."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from braidmq.admin.http.exposition import MetricsPage
from braidmq.admin.metrics import MetricValues
from braidmq.base.histogram import Histogram

DASHBOARD = Path(__file__).parents[3] / "ops" / "grafana" / "braidmq.json"

BLIPMQ = {
    "topics": 1.0,
    "subscribers": 2.0,
    "messages_published_total": 3.0,
    "messages_delivered_total": 4.0,
    "messages_inflight": 5.0,
    "subscriber_expiration_heap_size": 6.0,
    "subscriber_retry_heap_size": 7.0,
    "wal_appends_total": 8.0,
    "wal_bytes_total": 9.0,
}


def samples(values: MetricValues) -> dict[str, float]:
    text = MetricsPage(lambda: values).render().decode()
    return {
        sample.name + "".join(f"{{{k}={v}}}" for k, v in sample.labels.items()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_nine_metrics_of_blipmq_keep_their_names() -> None:
    """Its dashboards keep working, and at last show numbers."""
    found = samples(
        MetricValues(
            topics=1,
            subscriptions=2,
            messages_published=3,
            messages_delivered=4,
            messages_inflight=5,
            expiration_heap_size=6,
            retry_heap_size=7,
            wal_appends=8,
            wal_written_bytes=9,
        )
    )

    assert BLIPMQ == {name: found.get(name) for name in BLIPMQ}


def test_every_other_metric_has_our_prefix() -> None:
    """Even the numbers of the process."""
    foreign = {name for name in samples(MetricValues()) if not name.startswith("braidmq_")}

    assert BLIPMQ.keys() == foreign


@pytest.mark.parametrize("field", [field.name for field in fields(MetricValues)])
def test_every_value_of_the_snapshot_is_shown(field: str) -> None:
    """A counter that is shown nowhere is worth nothing."""
    plain = MetricValues()
    value = values_like(getattr(plain, field))
    changed = MetricValues()
    setattr(changed, field, value)
    shown = samples(changed)

    assert 41.0 in {shown[name] for name in shown if shown[name] != samples(plain).get(name)}


def values_like(value: object) -> object:
    """Return 41, in the form of *value*."""
    if isinstance(value, Histogram):
        histogram = Histogram((1, 50))
        histogram.add(41)
        return histogram
    return {"a": 41} if isinstance(value, dict) else 41


def test_a_histogram_has_buckets_a_count_and_a_sum() -> None:
    """Each bucket counts the values up to its bound."""
    histogram = Histogram((0.001, 0.5))
    for value in (0.001, 0.2, 0.3, 7):
        histogram.add(value)
    found = samples(MetricValues(wal_fsync_duration_seconds=histogram))
    name = "braidmq_wal_fsync_duration_seconds"

    assert [1.0, 3.0, 4.0, 4.0, 7.501] == [
        found[f"{name}_bucket{{le=0.001}}"],
        found[f"{name}_bucket{{le=0.5}}"],
        found[f"{name}_bucket{{le=+Inf}}"],
        found[f"{name}_count"],
        found[f"{name}_sum"],
    ]


def test_the_grafana_dashboard_uses_metrics_that_exist() -> None:
    """Every name in its queries is on the page, spelled the same."""
    full = MetricValues()
    for field in fields(MetricValues):
        setattr(full, field.name, values_like(getattr(full, field.name)))
    known = {name.partition("{")[0] for name in samples(full)}
    text = DASHBOARD.read_text()
    used = set(re.findall(r"\bbraidmq_[a-z_]+", text)) - {"braidmq_"}

    assert len(used) > 20
    assert set() == used - known
    assert "BraidMQ" == json.loads(text)["title"]


def test_values_by_reason_have_a_label_each() -> None:
    """A sum would hide how the messages ended."""
    found = samples(
        MetricValues(messages_dropped={"expired": 2, "overflow": 3}, connections={"blip": 4})
    )

    assert 2.0 == found["braidmq_messages_dropped_total{reason=expired}"]
    assert 3.0 == found["braidmq_messages_dropped_total{reason=overflow}"]
    assert 4.0 == found["braidmq_connections{strand=blip}"]
