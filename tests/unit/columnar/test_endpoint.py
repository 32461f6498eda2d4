"""The endpoint's client, over the broker's own service: it agrees with the directory."""

import base64
import pickle
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braidmq import columnar
from braidmq.base.errors import BraidError, ConfigError, NotAllowedError
from braidmq.client.qumbed.boxes import KeyPair
from braidmq.client.qumbed.envelope import Sealer
from braidmq.columnar import Decoding, Loss, TypedSchema, Unsealing
from braidmq.columnar import endpoint as endpoints
from braidmq.columnar.endpoint import Endpoint
from braidmq.columnar.flight.failures import UnauthenticatedError
from braidmq.columnar.logs import DirectoryLog
from tests.unit.columnar.endpoints import Served, read, served, skipped_line
from tests.unit.columnar.logs import log_of, message, retain_from, write, write_log
from tests.unit.columnar.test_reading import mixed

COUNT = 600
Wanted = dict[str, Any]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Any:  # noqa: ANN401 - directory and service
    path = write_log(tmp_path_factory.mktemp("log"), mixed(COUNT))
    with served(path) as found:
        yield DirectoryLog(path), found


def same(log: tuple[DirectoryLog, Served], verb: str, **wanted: Any) -> None:  # noqa: ANN401 - see read
    """Assert that both give the same, or raise the same error."""
    outcomes: list[Any] = []
    for one in (log[0], log[1].endpoint()):
        try:
            outcomes.append(
                read(one, **wanted) if verb == "read" else getattr(one, verb)(**wanted)
            )
        except BraidError as error:
            outcomes.append((type(error), str(error).replace(one.address, "ADDRESS")))

    assert outcomes[0] == outcomes[1]


WANTED = st.fixed_dictionaries(
    {},
    optional={
        "start": st.integers(-1, COUNT + 9),
        "end": st.integers(-1, COUNT + 9),
        "fail_on_data_loss": st.booleans(),
    },
)
TOPICS: st.SearchStrategy[Wanted] = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"topics": st.sets(st.sampled_from(["a", "b", "データ", "none"]))}),
    st.fixed_dictionaries({"pattern": st.sampled_from(["a", ".*", "(a|b)", "dlq.*", "x"])}),
)
ANY = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@ANY
@given(
    wanted=WANTED,
    topics=TOPICS,
    more=st.fixed_dictionaries(
        {},
        optional={
            "qos": st.integers(0, 2),
            "headers": st.booleans(),
            "columns": st.lists(
                st.sampled_from(["key", "value", "topic", "offset", "headers", "colour"]),
                max_size=4,
            ),
            "batch_rows": st.integers(0, 90),
        },
    ),
)
def test_reads_are_those_of_the_directory(
    log: tuple[DirectoryLog, Served], wanted: Wanted, topics: Wanted, more: Wanted
) -> None:
    """In rows, columns, types and errors, whatever the request."""
    same(log, "read", **wanted, **topics, **more)


@ANY
@given(
    wanted=WANTED,
    topics=TOPICS,
    size=st.fixed_dictionaries(
        {}, optional={"target_bytes": st.integers(0, 9_000), "parts": st.integers(0, 30)}
    ),
)
def test_cuts_are_those_of_the_directory(
    log: tuple[DirectoryLog, Served], wanted: Wanted, topics: Wanted, size: Wanted
) -> None:
    """Part for part."""
    same(log, "cut", **wanted, **topics, **size)


@ANY
@given(
    start=st.integers(0, COUNT + 9),
    topics=TOPICS,
    size=st.fixed_dictionaries(
        {}, optional={"messages": st.integers(0, 700), "payload_bytes": st.integers(0, 50_000)}
    ),
    fail=st.booleans(),
)
def test_advances_are_those_of_the_directory(
    log: tuple[DirectoryLog, Served], start: int, topics: Wanted, size: Wanted, fail: bool
) -> None:
    """Id for id."""
    same(log, "advance", start=start, fail_on_data_loss=fail, **topics, **size)


@ANY
@given(wanted=WANTED, moment=st.integers(-5, COUNT + 5))
def test_counts_and_times_are_those_of_the_directory(
    log: tuple[DirectoryLog, Served], wanted: Wanted, moment: int
) -> None:
    """Number for number."""
    same(log, "topic_counts", **wanted)
    same(log, "offset_at", time_us=moment)
    same(log, "offset_behind", time_us=moment)
    same(log, "offsets")


@pytest.mark.parametrize("topics", [{}, {"topics": ["a"]}, {"pattern": "a"}])
@pytest.mark.parametrize(
    "ids", [{"end": -1}, {"start": 0, "end": -1}, {"start": -1}, {"start": -2, "end": -1}]
)
def test_negative_ids_are_refused_as_by_the_directory(
    log: tuple[DirectoryLog, Served], ids: Wanted, topics: Wanted
) -> None:
    """Also if the topics of the range are asked for first, to match them with a pattern."""
    same(log, "read", **ids, **topics)
    same(log, "cut", **ids, **topics)
    same(log, "topic_counts", **ids)
    same(log, "advance", start=ids.get("start", -1), messages=1, **topics)


@pytest.mark.parametrize(
    "topics", [{"pattern": "("}, {"pattern": "a", "topics": ["a"]}, {"topics": "a"}]
)
def test_invalid_topics_are_refused_as_by_the_directory(
    log: tuple[DirectoryLog, Served], topics: Wanted
) -> None:
    """With the same error, and before the endpoint is called."""
    same(log, "read", **topics)
    same(log, "cut", **topics)
    same(log, "advance", start=1, **topics)


@pytest.mark.parametrize("topics", [["\ud800"], ["a", "\ud800"]])
def test_a_topic_with_a_lone_surrogate_is_absent_as_in_the_directory(
    log: tuple[DirectoryLog, Served], topics: list[str]
) -> None:
    """No message has such a topic, and no request could carry its name."""
    same(log, "read", topics=topics)
    same(log, "cut", topics=topics)
    same(log, "advance", start=1, messages=5, topics=topics)


def test_many_topics_and_large_payloads_arrive(tmp_path: Path) -> None:
    """Ten thousand topics in pages, payloads of a MiB, a name of 65,535 bytes."""
    bodies = [message(f"topic/{i}", b"%d" % i) for i in range(10_000)]
    bodies += [message("big", Random(i).randbytes(2**20)) for i in range(5)]
    bodies += [message("x" * 65_535, b"long"), message("empty", b"")]
    write_log(tmp_path, bodies, segment_bytes=2**20, batch=1000)
    with served(tmp_path) as found:
        log = DirectoryLog(tmp_path), found

        same(log, "read", headers=True)
        same(log, "read", pattern="topic/.*7")
        same(log, "read", topics=["x" * 65_535, "big", "empty"])
        same(log, "topic_counts")


def test_names_that_do_not_fit_in_a_request_are_refused_by_the_client(
    log: tuple[DirectoryLog, Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint would refuse them too, with a less helpful error."""
    monkeypatch.setattr(endpoints, "NAMES_BYTES_MAX", 30)
    endpoint = log[1].endpoint()

    with pytest.raises(ConfigError, match="topics: wants more topics than fit"):
        endpoint.cut(topics=[f"a/{n}" for n in range(9)])
    with pytest.raises(ConfigError, match="pattern: wants more topics than fit"):
        endpoint.cut(pattern=".*")


def test_a_new_topic_does_not_slip_past_a_pattern(tmp_path: Path) -> None:
    """If a matching topic appears after the names were listed, the read ends before it."""
    with log_of(tmp_path, [message("a1", b"x")] * 20) as wal, served(tmp_path) as found:
        endpoint = found.endpoint()
        batches = endpoint.batches(pattern="a.*", columns=["offset"])
        write(wal, [message("a2", b"y"), message("a1", b"z")] * 10)

        assert 20 == sum(map(len, batches))
        assert 40 == sum(map(len, endpoint.batches(pattern="a.*", columns=["offset"])))


def test_loss_is_an_error_or_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An error with its ids, or rows and a list of what was skipped, which is also logged."""
    with log_of(tmp_path, [message("t", bytes(500))] * 60) as wal, served(tmp_path) as found:
        retain_from(wal, 40)
        endpoint = found.endpoint()
        earliest = endpoint.offsets().earliest
        assert earliest > 1
        with pytest.raises(columnar.DataLossError) as caught:
            read(endpoint, start=1)
        losses: list[Loss] = []
        rows = read(endpoint, start=1, fail_on_data_loss=False, losses=losses)

        assert endpoint.address == caught.value.path
        assert (1, earliest - 1) == caught.value.loss[:2]
        assert [caught.value.loss] == losses
        assert 1 == caplog.messages.count(skipped_line(endpoint.address, losses[0]))
        assert list(range(earliest, 61)) == rows["offset"].to_pylist()


def test_decoding_happens_in_the_client(tmp_path: Path) -> None:
    """Sealed, typed and broken payloads: the same rows as from the directory."""
    alice, bob = KeyPair.generate(), KeyPair.generate()
    good = b'{"celsius":21.5,"timestamp_ms":17,"sensor_id":"a"}'
    sealed = Sealer(alice, now_ms=1).seal(
        good, bob.public_key, topic="t", schema_id="sensor.Temperature", now_ms=1
    )
    kept = {
        "senderPublicKey": base64.b64encode(alice.public_key).decode(),
        "schemaId": "sensor.Temperature",
    }
    bodies = [
        message("t", sealed, kept=kept),
        message("t", good),
        message("t", b"no", kept={"x": "y"}),
    ]
    write_log(tmp_path, bodies)
    schema = TypedSchema.built_in("sensor.Temperature")
    unsealing = Unsealing(bob.reveal_private_key())
    trusting = Unsealing(bob.reveal_private_key(), trusted=[alice.public_key])
    with served(tmp_path) as found:
        log = DirectoryLog(tmp_path), found
        for decoding in (
            Decoding(schema),
            Decoding(schema, unsealing),
            Decoding(None, unsealing),
            Decoding(schema, trusting),
            Decoding(None, trusting),
        ):
            for columns in (None, [], ["offset"], ["value", "headers"]):
                same(log, "read", decoding=decoding, columns=columns)
        rows = read(found.endpoint(), decoding=Decoding(schema, unsealing)).to_pylist()
        trusted = read(found.endpoint(), decoding=Decoding(schema, trusting)).to_pylist()

    assert [21.5, 21.5, None] == [row["celsius"] for row in rows]
    assert [21.5, None, None] == [row["celsius"] for row in trusted]


def test_a_key_sees_only_the_topics_that_it_may_read(tmp_path: Path) -> None:
    """All topics means the allowed ones; a topic that is named must be allowed."""
    names = ["a1", "a2", "b1", "sensors/x"]
    write_log(tmp_path, [message(name, name.encode()) for name in 5 * names])
    with served(tmp_path) as found:
        some, none = found.endpoint("some"), found.endpoint("none")
        allowed = {"a1", "a2", "sensors/x"}

        assert allowed == set(read(some)["topic"].to_pylist())
        assert allowed == set(some.topic_counts())
        assert {"a1", "a2"} == set(read(some, pattern=".*[12]")["topic"].to_pylist())
        assert 15 == sum(part.messages for part in some.cut())
        assert 5 == some.advance(1, messages=3)
        assert 0 == read(none).num_rows
        assert {} == none.topic_counts()
        for call in (some.batches, some.cut, lambda **wanted: some.advance(1, **wanted)):
            with pytest.raises(NotAllowedError, match="may not subscribe 'b1'"):
                list(call(topics=["a1", "b1"]))  # type: ignore[arg-type] # one is a number
        assert 5 == read(some, topics=["a1"]).num_rows


def test_an_unknown_key_is_refused(log: tuple[DirectoryLog, Served]) -> None:
    """The error does not repeat it."""
    endpoint = Endpoint(log[1].address, "secret-key")
    with pytest.raises(UnauthenticatedError, match="the API key is not known") as caught:
        endpoint.offsets()

    assert "secret-key" not in str(caught.value)
    assert "secret-key" not in repr(endpoint)


def test_an_endpoint_can_be_pickled_and_shared_by_threads(
    log: tuple[DirectoryLog, Served],
) -> None:
    """Copies open connections of their own; threads share one."""
    endpoint = log[1].endpoint()
    expected = read(endpoint, headers=True)
    copy = pickle.loads(pickle.dumps(endpoint))  # noqa: S301 - our own
    found: list[pa.Table] = []
    threads = [Thread(target=lambda: found.append(read(copy, headers=True))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    endpoint.close()

    assert 8 * [expected] == found
    assert expected == read(endpoint, headers=True)
