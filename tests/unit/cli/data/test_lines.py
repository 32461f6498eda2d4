"""`publish --lines`: how bytes become lines, and lines become messages."""

import asyncio
import io
import os
import sys
import threading

import pytest

import braidmq
from braidmq.base.limits import MESSAGE_BYTES_MAX
from braidmq.cli.data import lines
from braidmq.cli.data.lines import LineError, Lines
from braidmq.testing import running_broker


def batches(*reads: bytes) -> list[list[bytes]]:
    left = iter([*reads, b""])
    return list(lines.batches(lambda: next(left)))


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        ((b"a\nb\n",), [[b"a", b"b"]]),
        ((b"a\nb",), [[b"a"], [b"b"]]),
        ((b"a", b"b", b"c\nd", b"\n"), [[b"abc"], [b"d"]]),
        ((b"\n\n",), [[b"", b""]]),
        ((b"a\r\n",), [[b"a\r"]]),
        ((b"\xff\x00\n",), [[b"\xff\x00"]]),
        ((), []),
    ],
)
def test_lines_are_cut_wherever_reads_end(
    reads: tuple[bytes, ...], expected: list[list[bytes]]
) -> None:
    """A read yields at once what it completes; the last line needs no line break."""
    assert expected == batches(*reads)


def test_a_line_that_is_too_long_is_reported_with_its_number() -> None:
    """Before the whole of it is in memory."""
    with pytest.raises(LineError, match=f"line 2 has more than {MESSAGE_BYTES_MAX} bytes"):
        batches(b"a\n", MESSAGE_BYTES_MAX * b"x", b"x")


async def published(strand: str, data: bytes, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url(strand)) as client,
        client.subscribe("orders") as messages,
    ):
        one = Lines()
        try:
            await one.publish(client, "orders", {})
        finally:
            found: list[bytes] = []
            while len(found) < one.confirmed:
                message = await anext(messages)
                await message.ack()
                found.append(message.payload)
        assert not one.is_interrupted
        return found


@pytest.mark.asyncio
@pytest.mark.parametrize("strand", ["blip", "vibe", "qumbed"])
async def test_each_line_is_a_message(strand: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, on every strand; an empty line is an empty message."""
    sent = [b"%d" % number for number in range(3_000)]
    found = await published(strand, b"\n".join([*sent, b"", b"true"]), monkeypatch)

    assert [*sent, b"", b"true"] == found


@pytest.mark.asyncio
async def test_a_line_that_is_refused_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has its number, and how many messages are safe."""
    problem = "line 2: a payload on Vibe is JSON .*; 2 messages published"
    with pytest.raises(LineError, match=problem):
        await published("vibe", b'1\nnot json\n"x"\n', monkeypatch)


@pytest.mark.asyncio
async def test_lines_are_published_while_the_input_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with `tail -f`; a signal then ends it, and the count is of what is confirmed."""
    ours, theirs = os.pipe()
    with os.fdopen(ours) as stdin, os.fdopen(theirs, "wb", 0) as writer:
        monkeypatch.setattr(sys, "stdin", stdin)
        async with (
            running_broker() as broker,
            braidmq.connect(broker.url("blip")) as client,
            client.subscribe("orders") as messages,
        ):
            one = Lines()
            task = asyncio.create_task(one.publish(client, "orders", {}))
            for line in (b"one", b"two"):
                writer.write(line + b"\nhal")
                assert line == (await anext(messages)).payload.removeprefix(b"hal")
            os.kill(os.getpid(), 2)
            await task

            assert (2, True) == (one.confirmed, one.is_interrupted)
            writer.write(b"f\n")  # lets the thread that reads end


@pytest.mark.parametrize("waits", [True, False])
def test_the_thread_that_reads_ends_quietly_after_the_loop(
    waits: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether it had lines to hand over as the loop ended, or reads some later."""
    went_on, reads = threading.Event(), iter([b"1\n", b"x\n", b"2\n", b"3\n", b""])

    def read() -> bytes:
        data = next(reads)
        if data == b"2\n" and not waits:
            assert went_on.wait(30)
        return data

    monkeypatch.setattr(lines, "_reader", lambda: read)

    async def work() -> None:
        async with (
            running_broker() as broker,
            braidmq.connect(broker.url("vibe")) as client,
        ):
            with pytest.raises(LineError, match=r"line 2: .* 1 message published"):
                await Lines().publish(client, "orders", {})

    before = set(threading.enumerate())
    asyncio.run(work())
    went_on.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(30)

    assert ("", "") == capsys.readouterr()
