"""Compressed bodies of the Vibe strand."""

import random
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress

import brotli
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.wire.errors import FrameTooLargeError, MalformedFrameError, WireError
from braidmq.wire.vibe import compression

MIB = 1024 * 1024
BOMB_COST_BYTES_MAX = 2 * MIB

PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": compression.pack_gzip,
    "brotli": compression.pack_brotli,
}
UNPACK: dict[str, Callable[..., bytes]] = {
    "gzip": compression.unpack_gzip,
    "brotli": compression.unpack_brotli,
}
BOTH = pytest.mark.parametrize("name", PACK)


def bomb(name: str, mebibytes: int) -> bytes:
    """Pack this many MiB of zeros as tightly as possible, with the widest window."""
    zeros = bytes(MIB)
    if name == "gzip":
        stream = zlib.compressobj(9, zlib.DEFLATED, 31)
        return b"".join(stream.compress(zeros) for _ in range(mebibytes)) + stream.flush()
    packer = brotli.Compressor(quality=9, lgwin=24)
    packed = b"".join(packer.process(zeros) for _ in range(mebibytes))
    return bytes(packed + packer.finish())


@BOTH
@pytest.mark.parametrize(
    "body",
    [
        b"\x01",
        b"ab" * 1000,
        random.Random(1).randbytes(3000),
        b"x" * compression.CHUNK_BYTES,
        b"y" * compression.KEPT_BYTES_MAX,
        b"z" * (compression.KEPT_BYTES_MAX + 1),
        random.Random(2).randbytes(900_000),
    ],
    ids=lambda body: f"{len(body)} bytes",
)
def test_a_packed_body_unpacks(name: str, body: bytes) -> None:
    """A body comes back complete; one byte above the limit is refused."""
    assert body == UNPACK[name](PACK[name](body), len(body))
    with pytest.raises(FrameTooLargeError) as refusal:
        UNPACK[name](PACK[name](body + b"!"), len(body))
    assert len(body) == refusal.value.length_max


@BOTH
def test_an_empty_stream_unpacks_to_nothing(name: str) -> None:
    """That is valid compression; the reader of bodies refuses empty ones."""
    assert b"" == UNPACK[name](PACK[name](b""), 10)


@BOTH
def test_a_truncated_stream_is_refused(name: str) -> None:
    """Cut at any byte."""
    packed = PACK[name](b"some words, and some words again" * 9)

    for end in range(1, len(packed)):
        with pytest.raises(MalformedFrameError):
            UNPACK[name](packed[:end], MIB)


@BOTH
def test_data_after_the_stream_is_refused(name: str) -> None:
    """A frame holds one compressed body and nothing else."""
    packed = PACK[name](b"some words" * 9)

    with pytest.raises(MalformedFrameError):
        UNPACK[name](packed + b"\x00", MIB)
    with pytest.raises(MalformedFrameError):
        UNPACK[name](packed + packed, MIB)


@BOTH
def test_a_stream_truncated_near_its_end_is_refused(name: str) -> None:
    """Damage after the first chunks is found too."""
    packed = bytearray(PACK[name](random.Random(3).randbytes(300_000)))
    del packed[-1000:]

    with pytest.raises(MalformedFrameError):
        UNPACK[name](bytes(packed), MIB)


@pytest.mark.parametrize("window_bits", range(10, 25))
def test_every_brotli_window_is_read(window_bits: int) -> None:
    """Released clients declare 4 MiB; wider and narrower windows work as well."""
    body = random.Random(window_bits).randbytes(200_000) * 2
    packed = brotli.compress(body, quality=5, lgwin=window_bits)

    assert body == compression.unpack_brotli(packed, len(body))
    assert body == compression.unpack_brotli(packed, MIB)
    assert body == compression.unpack_brotli(packed, 32 * MIB)


def repeating_its_start(distance: int) -> bytes:
    """Return a body of 1 MiB that repeats only its first bytes, *distance* later."""
    start = bytes(random.Random(4).choices(range(64), k=distance))
    return start + start[: MIB - distance]


@pytest.mark.parametrize("distance", [MIB - 17, MIB - 16, MIB - 15, MIB - 12])
def test_a_body_at_the_limit_may_repeat_its_first_bytes_at_its_end(distance: int) -> None:
    """The one case in which a window of the limit's size is too narrow."""
    body = repeating_its_start(distance)
    packed = brotli.compress(body, quality=9, lgwin=24)

    assert body == compression.unpack_brotli(packed, MIB)


def test_a_window_of_the_size_of_the_limit_is_too_narrow_for_such_a_body() -> None:
    """So the test above covers its case: with the narrow window this body comes out wrong."""
    body = repeating_its_start(MIB - 12)
    packed = brotli.compress(body, quality=9, lgwin=24)
    narrow = bytes([packed[0] & 0xF0 | 0b0111]) + packed[1:]

    assert body == brotli.decompress(packed)
    assert body != brotli.decompress(narrow)


@pytest.mark.parametrize(("name", "mebibytes"), [("gzip", 1), ("brotli", 1024)])
def test_a_bomb_costs_little_memory(name: str, mebibytes: int) -> None:
    """About 1 KiB that unpacks to over 1 MiB, or to 1 GiB, is refused while unpacking."""
    packed = bomb(name, mebibytes) if name == "brotli" else bomb(name, mebibytes + 1)
    assert len(packed) < 3 * 1024

    tracemalloc.start()
    with pytest.raises(FrameTooLargeError):
        UNPACK[name](packed, MIB)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < BOMB_COST_BYTES_MAX


MEASURE = """
import sys
from pathlib import Path
from braidmq.wire.errors import FrameTooLargeError
from braidmq.wire.vibe import compression

def peak_bytes():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024

unpack = getattr(compression, "unpack_" + sys.argv[1])
packed = sys.stdin.buffer.read()
unpack(getattr(compression, "pack_" + sys.argv[1])(b"warm"), 10)
before = peak_bytes()
try:
    unpack(packed, 1024 * 1024)
except FrameTooLargeError:
    print(peak_bytes() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak from /proc")
@pytest.mark.parametrize("name", ["gzip", "brotli"])
def test_a_bomb_costs_the_process_little_memory(name: str) -> None:
    """Measured by the kernel, which counts the decoder's own buffers too."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, name],
        input=bomb(name, 256),
        capture_output=True,
        check=True,
        timeout=60,
    )

    assert int(done.stdout) < BOMB_COST_BYTES_MAX


@given(st.binary(min_size=1, max_size=80), st.integers(1, 4096))
def test_noise_raises_documented_errors_only(noise: bytes, size_max: int) -> None:
    """Any bytes unpack within the bound or raise WireError."""
    for packed in (noise, b"\x1f\x8b\x08\x00" + noise):
        for unpack in UNPACK.values():
            with suppress(WireError):
                assert len(unpack(packed, size_max)) <= size_max


@BOTH
def test_an_unwanted_body_costs_its_beginning_only(name: str) -> None:
    """Its end is not even looked at: it may be missing."""
    content = random.Random(1).randbytes(MIB).hex().encode()
    packed = PACK[name](content)
    seen: list[bytes] = []

    def judge(start: bytes) -> int:
        seen.append(start)
        return 0

    with pytest.raises(compression.UnwantedBodyError) as unwanted:
        UNPACK[name](packed[: len(packed) // 2], 8 * MIB, judge)

    assert seen == [unwanted.value.start]
    assert content.startswith(seen[0])
    assert 1024 <= len(seen[0]) <= compression.CHUNK_BYTES
    assert content == UNPACK[name](packed, 8 * MIB, lambda _: 8 * MIB)


@pytest.mark.parametrize("name", ["gzip", "brotli"])
def test_a_judge_sees_more_until_it_decides_and_bounds_the_body(name: str) -> None:
    """A beginning may be too short to tell; and a body may be as long as the judge says."""
    content = b"".join(number.to_bytes(4, "big") for number in range(75_000))
    packed = PACK[name](content)
    seen: list[bytes] = []

    def judge(start: bytes) -> int:
        seen.append(start)
        return compression.UNDECIDED if len(start) < 100_000 else len(content)

    assert content == UNPACK[name](packed, MIB, judge)
    assert [True] * len(seen) == [content.startswith(start) for start in seen]
    assert len(seen[-2]) < 100_000 <= len(seen[-1]) < len(content)
    with pytest.raises(compression.UnwantedBodyError) as unwanted:
        UNPACK[name](packed, MIB, lambda _: len(content) - 1)
    assert content.startswith(unwanted.value.start)


def test_a_body_may_not_expand_more_than_gzip_can() -> None:
    """Short ones may: some KiB cost next to nothing."""
    zeros = compression.pack_gzip(bytes(MIB))
    free = compression.EXPANDED_FREE_BYTES

    assert MIB == compression.expanded_max(len(zeros), MIB)
    assert [free, free, 100 * compression.RATIO_MAX, MIB, 4096] == [
        compression.expanded_max(size, size_max)
        for size, size_max in ((1, MIB), (45, MIB), (100, MIB), (MIB, MIB), (45, 4096))
    ]
