"""The surface that all strands share."""

import inspect

import pytest

from braidmq.client import surface, sync
from braidmq.client.blip.strand import BlipClient
from braidmq.client.blip.subscription import BlipSubscription
from braidmq.client.qumbed.strand import QumbedClient
from braidmq.client.qumbed.subscription import QumbedSubscription
from braidmq.client.vibe.strand import VibeClient
from braidmq.client.vibe.subscription import VibeSubscription

PAIRS = [
    (surface.Client, BlipClient),
    (surface.Subscription, BlipSubscription),
    (surface.Client, VibeClient),
    (surface.Subscription, VibeSubscription),
    (surface.Client, QumbedClient),
    (surface.Subscription, QumbedSubscription),
]


def public(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(value)
        for name, value in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(("common", "strand"), PAIRS)
def test_a_strand_takes_what_the_surface_promises(common: type, strand: type) -> None:
    """Each method has the same parameters, with the same defaults, on every strand."""
    for name, signature in public(common).items():
        assert signature.parameters == public(strand)[name].parameters, name


@pytest.mark.parametrize(
    ("common", "blocking"),
    [(surface.Client, sync.Client), (surface.Subscription, sync.Subscription)],
)
def test_the_blocking_facade_has_the_same_names(common: type, blocking: type) -> None:
    """Learning one is learning both; `take` is how the facade itself iterates."""
    for name, signature in public(common).items():
        if name != "take":
            assert signature.parameters == public(blocking)[name].parameters, name


@pytest.mark.parametrize(("common", "strand"), PAIRS)
def test_options_are_keyword_only_and_seconds_are_floats(common: type, strand: type) -> None:
    """At most two parameters have a place; the rest are named."""
    for signature in public(common).values():
        parameters = list(signature.parameters.values())[1:]
        placed = [one for one in parameters if one.kind is not one.KEYWORD_ONLY]

        assert len(placed) <= 2
        assert all(one.default is one.empty for one in placed)
