"""The metrics as Prometheus reads them; imported when it first asks, not at the start."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, ClassVar

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from braidmq.admin.metrics import BLIPMQ_NAMES, COUNTER, Measure, MetricValues
from braidmq.base.histogram import Histogram
from braidmq.base.printable import printable


class BrokerCollector(Collector):
    """Turn one snapshot into metric families at each scrape."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of one snapshot."""
        values = self._measure()
        known = {one.name: one.metadata for one in fields(MetricValues)}
        named = [(f"braidmq_{name}", name) for name in known if known[name]["is_ours"]]
        for name, source in (*named, *BLIPMQ_NAMES.items()):
            yield _family(name, known[source], getattr(values, source))

    def describe(self) -> list[Metric]:
        """Return nothing: registering the collector must not take a snapshot."""
        return []


def _family(
    name: str, about: Mapping[str, Any], value: float | Mapping[str, int] | Histogram
) -> Metric:
    if isinstance(value, Histogram):
        histogram = HistogramMetricFamily(name, about["help"])
        histogram.add_metric([], value.cumulated(), value.sum)
        return histogram
    kind = CounterMetricFamily if about["kind"] == COUNTER else GaugeMetricFamily
    family: CounterMetricFamily | GaugeMetricFamily = kind(
        name, about["help"], labels=[about["label"]] if about["label"] else None
    )
    if isinstance(value, Mapping):
        for label, number in sorted(value.items()):
            family.add_metric([printable(label)], number)
    else:
        family.add_metric([], value)
    return family


class MetricsPage:
    """The page that a scrape reads."""

    content_type: ClassVar = CONTENT_TYPE_PLAIN_0_0_4  # every scraper reads this version

    def __init__(self, measure: Measure) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(BrokerCollector(measure))
        ProcessCollector(namespace="braidmq", registry=self._registry)

    def render(self) -> bytes:
        """Return the numbers of this moment in the text format."""
        return generate_latest(self._registry)
