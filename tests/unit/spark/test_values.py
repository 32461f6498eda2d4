"""Values of options: what each text means, and how a bad one is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.spark import values
from braidmq.spark.values import EARLIEST, LATEST, OptionError

KEY = "11" * 32

MEANINGS = [
    (values.directory, "/data", Path("/data")),
    (values.directory, "data", Path.cwd() / "data"),
    (values.address, "grpc://broker:8815", "grpc://broker:8815"),
    (values.address, " grpc+tls://10.0.0.1:1/", "grpc+tls://10.0.0.1:1"),
    (values.address, "grpc://[::1]:65535", "grpc://[::1]:65535"),
    (values.api_key, "bq_0-A", "bq_0-A"),
    (values.name, "köln billing", "köln billing"),
    (values.topic, "t" * 65_535, "t" * 65_535),
    (values.topics, "a, b ,a", ("a", "b")),
    (values.pattern, "s.*", "s.*"),
    (values.position, "earliest", EARLIEST),
    (values.position, "Latest", LATEST),
    (values.position, "17", 17),
    (values.position, '{"a":{"0":5},"b":{"0":-2}}', {"a": 5, "b": EARLIEST}),
    (values.milliseconds, "1700000000123", 1_700_000_000_123_000),
    (values.milliseconds, "0", 0),
    (values.count, "1", 1),
    (values.flag, "TRUE", True),
    (values.flag, "false", False),
    (values.schema_id, "sensor.Temperature", "sensor.Temperature"),
    (values.schema_id, "/etc/x.json", "/etc/x.json"),
    (values.public_keys, f"{KEY}, {KEY}", (bytes.fromhex(KEY),) * 2),
]


@pytest.mark.parametrize(("parser", "text", "value"), MEANINGS)
def test_a_text_has_its_meaning(
    parser: Callable[[str, str], object], text: str, value: object
) -> None:
    """As the table in the documentation says; paths are made absolute."""
    assert value == parser("x", text)


BAD = [
    (values.directory, ""),
    (values.directory, "hdfs://x/y"),
    (values.address, ""),
    (values.address, "broker:8815"),
    (values.address, "http://broker:8815"),
    (values.address, "grpc://broker"),
    (values.address, "grpc://broker:0"),
    (values.address, "grpc://broker:65536"),
    (values.address, "grpc://key@broker:1"),
    (values.address, "grpc://broker:1/path"),
    (values.name, ""),
    (values.name, " "),
    (values.name, "a\nb"),
    (values.name, "ö" * 128),
    (values.topic, ""),
    (values.topic, "t" * 65_536),
    (values.topics, "a,,b"),
    (values.topics, " "),
    (values.pattern, "("),
    (values.position, "newest"),
    (values.position, "-1"),
    (values.position, "9" * 30),
    (values.position, "9" * 5_000),
    (values.position, '{"a":{"0":' + "9" * 5_000 + "}}"),
    (values.position, "[1]"),
    (values.position, "{}"),
    (values.position, '{"a":7}'),
    (values.position, '{"a":{"1":5}}'),
    (values.position, '{"a":{"0":-3}}'),
    (values.position, '{"a":{"0":5,"1":5}}'),
    (values.milliseconds, "2026-01-01"),
    (values.milliseconds, "-1"),
    (values.milliseconds, "9" * 5_000),
    (values.count, "9" * 5_000),
    (values.milliseconds, "1.5"),
    (values.count, "0"),
    (values.count, "1k"),
    (values.count, "²"),
    (values.count, "-5"),
    (values.flag, "yes"),
    (values.flag, "1"),
    (values.schema_id, ""),
    (values.public_keys, "abc"),
    (values.key_file, ""),
    (values.key_file, "s3://a/key"),
]


@pytest.mark.parametrize(("parser", "text"), BAD)
def test_a_bad_text_is_refused_with_name_value_and_fix(
    parser: Callable[[str, str], object], text: str
) -> None:
    """The user then knows what to change; a long value is truncated."""
    shown = repr(text)[:40].rstrip("'")
    with pytest.raises(OptionError) as found:
        parser("someOption", text)

    assert str(found.value).startswith(f"option someOption: {shown}")
    assert "; " in str(found.value)
    assert len(str(found.value)) < 250


LOW_ORDER = "00" * 32
NOT_CANONICAL = "f5" + "ff" * 31


@pytest.mark.parametrize("text", [LOW_ORDER, NOT_CANONICAL, "secret"])
def test_an_invalid_trusted_key_is_refused_without_repeating_it(text: str) -> None:
    """The error has only its number: it may be a private key."""
    with pytest.raises(OptionError) as found:
        values.public_keys("trustedKeys", f"{KEY}, {text}")

    assert text not in str(found.value)
    assert str(found.value).startswith("option trustedKeys: '***' has a key, number 2, that ")
    assert "; give public keys as `braidmq keygen` prints them" in str(found.value)


def test_a_key_in_place_of_its_file_is_not_repeated() -> None:
    """Errors are logged."""
    with pytest.raises(OptionError) as found:
        values.key_file("privateKeyFile", KEY)

    assert KEY not in str(found.value)
    assert str(found.value).startswith(
        "option privateKeyFile: '***' is a key, and not the file"
    )
    assert Path("/a/key") == values.key_file("privateKeyFile", "/a/key")


def test_a_problem_that_is_found_later_is_reported_with_its_option() -> None:
    """An error that already names an option stays as it is."""
    with (
        pytest.raises(OptionError, match=r"^option a: 'v' cannot be used: it is bad; do b$"),
        values.refused_as("a", "v", "do b"),
    ):
        raise ConfigError("key", "it is bad")
    with pytest.raises(OptionError, match="option c"), values.refused_as("a", "v", "do b"):
        raise OptionError("c", "v", "is bad", "do d")


@pytest.mark.parametrize("text", ["", "köln-1", "s3 cret", "s3cret\n"])
def test_an_invalid_api_key_is_refused_without_repeating_it(text: str) -> None:
    """Errors are logged."""
    with pytest.raises(OptionError) as found:
        values.api_key("apiKey", text)

    assert not text or text not in str(found.value)
    assert str(found.value).startswith(
        "option apiKey: '***' is not" if text else "option apiKey: ''"
    )
