"""The table of strands and features."""

import pytest

from braidmq.client import capabilities
from braidmq.client.capabilities import STRANDS, TABLE
from braidmq.client.errors import NotSupported
from braidmq.client.options import Choices, PublishOptions, SubscribeOptions
from braidmq.client.url import DEFAULT_PORTS

METHODS = {"nack", "queues", "stats"}


def test_every_strand_has_a_column() -> None:
    """The table covers exactly the strands that a URL can name."""
    assert set(DEFAULT_PORTS) == set(STRANDS)


def test_every_row_is_an_option_or_a_method() -> None:
    """A row with an unknown name would never refuse anything."""
    options = {
        *Choices.__annotations__,
        *PublishOptions._fields,
        *SubscribeOptions._fields,
        "qos 0",
    }

    assert set() == set(TABLE) - options - METHODS


def test_every_row_is_missing_from_some_strand() -> None:
    """A feature that every strand has needs no row."""
    assert [] == [feature for feature, row in TABLE.items() if row == (True, True, True)]


@pytest.mark.parametrize("strand", STRANDS)
@pytest.mark.parametrize("feature", TABLE)
def test_a_missing_feature_is_refused_by_name(strand: str, feature: str) -> None:
    """The error names a strand that has the feature; supported features pass."""
    if capabilities.has(strand, feature):
        capabilities.check(strand, [feature])
        return
    with pytest.raises(NotSupported, match=f"^{strand} does not support {feature}") as caught:
        capabilities.check(strand, [feature])

    error = caught.value
    assert (strand, feature) == (error.strand, error.feature)
    assert not error.supported_by or capabilities.has(error.supported_by, feature)


@pytest.mark.parametrize(
    ("strand", "feature", "text"),
    [
        ("blip", "headers", "blip does not support headers; vibe does"),
        ("vibe", "ttl", "vibe does not support ttl: declare the queue with a ttl"),
        ("vibe", "stats", "vibe does not support stats: ask for a queue_info; blip does"),
        ("qumbed", "ttl", "qumbed does not support ttl"),
    ],
)
def test_the_error_says_what_to_do_instead(strand: str, feature: str, text: str) -> None:
    """The text holds a hint, if there is one, and a strand that has the feature."""
    with pytest.raises(NotSupported) as caught:
        capabilities.check(strand, [feature])

    assert text == str(caught.value)


def test_every_strand_has_a_feature_that_is_not_in_the_table() -> None:
    """The table lists only differences."""
    assert all(capabilities.has(strand, "prefetch") for strand in STRANDS)


@pytest.mark.parametrize(
    ("given", "feature"),
    [
        (PublishOptions(headers={}), "headers"),
        (PublishOptions(priority=0), "priority"),
        (PublishOptions(retry=True, qos=0), "qos 0"),
        (PublishOptions(qos=False), "qos 0"),
        (SubscribeOptions(qos=False), "qos 0"),
        (SubscribeOptions(prefetch=1, subscription_id=7), "subscription_id"),
        (SubscribeOptions(schema="a"), "schema"),
    ],
)
def test_an_option_counts_as_given_when_it_differs_from_its_default(
    given: PublishOptions | SubscribeOptions, feature: str
) -> None:
    """An empty value counts too: an option that would be ignored is refused."""
    lacking = next(strand for strand in STRANDS if not capabilities.has(strand, feature))
    with pytest.raises(NotSupported) as caught:
        capabilities.check_options(lacking, given, type(given)())

    assert feature == caught.value.feature


@pytest.mark.parametrize("strand", STRANDS)
def test_default_options_are_never_refused(strand: str) -> None:
    """Defaults pass on every strand, as do options that every strand has."""
    capabilities.check_options(strand, PublishOptions(), PublishOptions())
    capabilities.check_options(strand, PublishOptions(retry=True), PublishOptions())
    capabilities.check_options(strand, SubscribeOptions(prefetch=1), SubscribeOptions())
