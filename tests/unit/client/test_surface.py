"""The client surface that all strands share."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import braidmq
from braidmq.client import capabilities, deliveries, subscription, surface, sync
from braidmq.client.blip.strand import BlipStrand
from braidmq.client.options import Options, PublishOptions, QueueOptions, SubscribeOptions
from braidmq.client.qumbed.strand import QumbedStrand
from braidmq.client.strand import AnyStrand
from braidmq.client.url import parse
from braidmq.client.vibe.strand import VibeStrand
from tests.unit.client.strands import AnyPeer, every_strand

FACADES = [
    (surface.Client, sync.Client, set()),
    # The facade itself iterates with `take`.
    (subscription.Subscription, sync.Subscription, {"take"}),
    (deliveries.Message, sync.Message, {"failed"}),
]


def public(kind: type) -> dict[str, Callable[..., Any]]:
    return {
        name: value
        for name, value in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(("common", "blocking", "inside"), FACADES)
def test_the_blocking_facade_has_the_same_methods(
    common: type, blocking: type, inside: set[str]
) -> None:
    """With the same parameters, so that there is only one surface to learn."""
    ours, theirs = public(common), public(blocking)

    assert set(ours) - inside == set(theirs)
    for name, method in theirs.items():
        expected = inspect.signature(ours[name]).parameters
        actual = inspect.signature(method).parameters
        assert list(expected) == list(actual), name
        for parameter in expected.values():
            assert parameter == actual[parameter.name], name
        assert method.__doc__, name
        assert not inspect.iscoroutinefunction(method), name


@pytest.mark.parametrize(("common", "blocking", "inside"), FACADES)
def test_the_blocking_facade_has_the_same_attributes(
    common: type, blocking: type, inside: set[str]
) -> None:
    """Each has a docstring."""
    del inside
    names = {
        name
        for kind in common.__mro__
        for name, value in {**inspect.get_annotations(kind), **vars(kind)}.items()
        if not name.startswith("_") and not inspect.isfunction(value)
    } - {"strand"}
    readings = {
        name: value for name, value in vars(blocking).items() if isinstance(value, sync.Reading)
    }

    assert names == set(readings)
    assert [] == [name for name, value in readings.items() if not value.__doc__]


def test_the_blocking_connect_takes_the_same_parameters() -> None:
    """Its docstring repeats that of the asynchronous one."""
    assert (
        inspect.signature(braidmq.connect).parameters
        == inspect.signature(braidmq.sync.connect).parameters
    )
    assert sync.Client is inspect.signature(braidmq.sync.connect).return_annotation
    assert braidmq.connect.__doc__
    assert braidmq.connect.__doc__ in (braidmq.sync.connect.__doc__ or "")


@pytest.mark.parametrize(
    ("method", "result"),
    [
        (sync.Client.publish, braidmq.Receipt),
        (sync.Client.subscribe, sync.Subscription),
        (sync.Subscription.fetch, list[sync.Message]),
    ],
)
def test_a_blocking_method_is_annotated_with_the_blocking_type(
    method: Callable[..., Any], result: object
) -> None:
    """`help` shows the blocking classes, not the asynchronous ones behind them."""
    assert result == inspect.signature(method).return_annotation


def test_attributes_of_the_facade_are_read_only() -> None:
    """The value lives in the asynchronous object behind the facade."""
    message = sync.Message.__new__(sync.Message)
    with pytest.raises(AttributeError, match="topic is read-only"):
        message.topic = "another"


@pytest.mark.parametrize("common", [surface.Client, subscription.Subscription])
def test_options_are_keyword_only(common: type) -> None:
    """At most two parameters are positional, and those have no default."""
    for method in public(common).values():
        parameters = list(inspect.signature(method).parameters.values())[1:]
        placed = [one for one in parameters if one.kind is not one.KEYWORD_ONLY]

        assert len(placed) <= 2
        assert all(one.default is one.empty for one in placed)


@pytest.mark.parametrize(
    ("method", "record", "lacking"),
    [
        (surface.Client.publish, PublishOptions, set()),
        (surface.Client.publish_many, PublishOptions, {"ttl"}),
        (surface.Client.subscribe, SubscribeOptions, set()),
        (surface.Client.declare_queue, QueueOptions, set()),
    ],
)
def test_a_signature_has_the_options_of_its_record(
    method: Callable[..., Any], record: type[NamedTuple], lacking: set[str]
) -> None:
    """With the same defaults, so that omitting an option equals passing its default."""
    parameters = inspect.signature(method).parameters.values()
    options = {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}

    assert set(record._fields) - lacking == set(options)
    assert options == {name: record._field_defaults[name] for name in options}


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", [BlipStrand, VibeStrand, QumbedStrand])
async def test_a_strand_does_what_the_table_says(
    kind: Callable[[Any, Options], AnyStrand],
) -> None:
    """A feature that the table grants is implemented, and no other."""
    strand = kind(parse(f"{kind.name}://key@127.0.0.1"), Options())  # type: ignore[attr-defined] # every strand class has a name

    assert capabilities.has(strand.name, "queues") == (strand.queues is not None)
    overrides_stats = "stats" in vars(type(strand))
    assert capabilities.has(strand.name, "stats") == overrides_stats


@pytest.mark.asyncio
@every_strand
async def test_qos_is_0_or_1_on_every_strand(strand: type[AnyPeer]) -> None:
    """Any other value is an error, and nothing is published."""
    async with strand() as peer, braidmq.connect(peer.url) as client:
        for qos in (-1, 2):
            for attempt in (
                client.publish("orders", b"1", qos=qos),
                client.publish_many("orders", [b"1"], qos=qos),
            ):
                with pytest.raises(braidmq.InvalidArgument, match=f"qos is 0 or 1, not {qos}"):
                    await attempt
            with pytest.raises(braidmq.InvalidArgument, match="qos is 0 or 1"):
                client.subscribe("orders", qos=qos)

        assert [] == peer.payloads()
