"""The load: every message arrives, is counted once, and is timed."""

import asyncio
import hashlib
import json

import pytest

import braidmq
from braidmq.cli.bench import load as bench_load
from braidmq.cli.bench.load import SIZE_MIN, BenchError, Load, Run, payload
from braidmq.testing import running_broker


def load(strand: str = "blip", **options: object) -> Load:
    defaults: dict[str, object] = {
        "topic": "bench",
        "publishers": 2,
        "subscribers": 2,
        "size": 50,
        "qos": 1,
        "messages": 1_200,
        "seconds": None,
        "rate": 0.0,
    }
    return Load(strand=strand, **{**defaults, **options})  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize("size", [SIZE_MIN, SIZE_MIN + 1, 5_000])
def test_a_message_is_json_of_the_requested_size(size: int) -> None:
    """So that Vibe carries it unchanged."""
    made = payload(123, 456, size)

    assert size == len(made)
    assert json.loads(made).startswith("00000000000000000123000000000456")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("strand", "qos", "sent", "delivered"),
    [
        ("blip", 1, 1_200, 2_400),
        ("blip", 0, 500, 1_000),  # as many as a window holds, so that none is dropped
        ("vibe", 1, 1_200, 1_200),
        ("qumbed", 1, 1_200, 2_400),
    ],
)
async def test_every_message_is_delivered_and_timed(
    strand: str, qos: int, sent: int, delivered: int
) -> None:
    """To each subscriber; from a queue to one of them."""
    progress: list[float] = []
    async with running_broker() as broker:
        run = Run(load(strand, qos=qos, messages=sent), progress.append)
        measured = await run.go(broker.url(strand))

    assert (sent, delivered, 0) == (measured.published, measured.delivered, measured.lost)
    assert delivered == len(measured.latencies)
    assert min(measured.latencies) > 0
    assert sent == sum(measured.published_at.values())
    assert delivered + measured.repeated == sum(measured.delivered_at.values())
    assert progress == sorted(progress)
    assert 1.0 == progress[-1]


@pytest.mark.asyncio
async def test_at_a_rate_each_message_is_due_at_its_own_time() -> None:
    """They are spread over the whole run, and none is early."""
    async with running_broker() as broker:
        wanted = load(messages=100, rate=500.0, subscribers=0)
        measured = await Run(wanted, lambda _: None).go(broker.url())

    # Each publisher sends one in 4 ms, and its fiftieth is due after 49 of them.
    assert measured.publish_s >= 49 * 0.004
    assert 100 == measured.published
    assert len(measured.confirmations) > 10


@pytest.mark.asyncio
async def test_a_run_ends_after_its_duration() -> None:
    """However many messages it has published."""
    async with running_broker() as broker:
        wanted = load(messages=None, seconds=0.2, subscribers=1)
        measured = await Run(wanted, lambda _: None).go(broker.url())

    assert measured.publish_s >= 0.2
    assert 0 < measured.published == measured.delivered


@pytest.mark.asyncio
async def test_missing_deliveries_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate that counts lost messages would be wrong."""
    monkeypatch.setattr(bench_load, "SILENCE_S_MAX", 0.1)
    async with running_broker() as broker:
        run = Run(load(messages=10, subscribers=1), lambda _: None)
        monkeypatch.setattr(run, "_expected", lambda: 11)
        with pytest.raises(BenchError, match="1 of 11 deliveries are missing"):
            await run.go(broker.url())


@pytest.mark.asyncio
async def test_on_vibe_no_queue_is_left_behind() -> None:
    """The one that the run created is deleted."""
    async with running_broker() as broker:
        run = Run(load("vibe", messages=10), lambda _: None)
        measured = await run.go(broker.url("vibe"))
        async with braidmq.connect(broker.url("vibe")) as client:
            assert [] == await client.list_queues()

    assert not measured.queue_stays


@pytest.mark.asyncio
async def test_a_queue_that_existed_before_is_kept() -> None:
    """Other clients may use it, and the messages in it."""
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("vibe")) as client,
    ):
        await client.declare_queue("bench")
        run = Run(load("vibe", messages=10), lambda _: None)
        measured = await run.go(broker.url("vibe"))
        assert ["bench"] == await client.list_queues()

    assert not measured.queue_stays


def config(**rights: object) -> dict[str, object]:
    hashed = f"sha256:{hashlib.sha256(b'limited').hexdigest()}"
    return {"auth": {"keys": [{"name": "limited", "hash": hashed, **rights}]}}


@pytest.mark.asyncio
@pytest.mark.parametrize("content", [b"{}", b'"job"', payload(1, 10**9, 50), b"7" * 50])
async def test_messages_of_other_publishers_end_the_run_and_stay(content: bytes) -> None:
    """They stay in the queue for the consumers they are meant for."""
    async with running_broker() as broker, braidmq.connect(broker.url("vibe")) as client:
        await client.publish("bench", content)
        with pytest.raises(BenchError, match="bench carries messages of other publishers"):
            await Run(load("vibe"), lambda _: None).go(broker.url("vibe"))
        async with client.subscribe("bench") as messages:
            kept = await anext(messages)

    assert content == kept.payload


@pytest.mark.asyncio
async def test_a_queue_that_may_not_be_deleted_does_not_spoil_the_run() -> None:
    """The result says that the queue stays."""
    async with running_broker(config=config(publish=["*"], subscribe=["*"])) as broker:
        run = Run(load("vibe", messages=10), lambda _: None)
        measured = await run.go(broker.url("vibe", key="limited"))

    assert (10, True) == (measured.published, measured.queue_stays)


@pytest.mark.asyncio
async def test_a_key_that_may_not_look_at_the_queue_deletes_none() -> None:
    """The error is the refusal of the publish that it measures."""
    async with running_broker(config=config(publish=["other"])) as broker:
        run = Run(load("vibe", messages=10, subscribers=0), lambda _: None)
        with pytest.raises(braidmq.PublishRefused, match="publish to 'bench' refused: "):
            await run.go(broker.url("vibe", key="limited"))


@pytest.mark.asyncio
@pytest.mark.parametrize("strand", ["blip", "vibe"])
async def test_a_broker_that_refuses_everything_ends_the_run(strand: str) -> None:
    """With the first refusal, because nothing was measured."""
    async with running_broker(config=config(subscribe=["*"])) as broker:
        async with braidmq.connect(broker.url("vibe")) as client:
            await client.declare_queue("bench")
        wanted = load(strand, messages=None, seconds=60.0, rate=10.0)
        with pytest.raises(braidmq.PublishRefused, match="publish to 'bench' refused: "):
            await Run(wanted, lambda _: None).go(broker.url(strand, key="limited"))


@pytest.mark.asyncio
async def test_a_run_that_is_cancelled_has_the_figures_so_far() -> None:
    """Nothing counts as lost: what was on its way was not waited for."""
    began = asyncio.Event()
    async with running_broker() as broker:
        run = Run(load(messages=None, seconds=600.0), lambda _: began.set())
        assert None is run.interrupted()
        task = asyncio.create_task(run.go(broker.url("blip")))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        measured = run.interrupted()

    assert measured is not None
    assert (True, 0) == (measured.interrupted, measured.lost)
    assert measured.published > 0
    assert measured.publish_s > 0
