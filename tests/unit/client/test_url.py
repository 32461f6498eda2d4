"""Broker URLs."""

import pytest

from braidmq.client.errors import InvalidArgument
from braidmq.client.url import Endpoint, parse

SCHEMES = "blip://, vibe://, qumbed://"
EXAMPLE = "blip://KEY@127.0.0.1:5555"


@pytest.mark.parametrize(
    ("url", "endpoint", "address"),
    [
        (
            "blip://dev-key@127.0.0.1:5555",
            Endpoint("blip", "127.0.0.1", 5555, tls=False, key="dev-key"),
            "127.0.0.1:5555",
        ),
        (
            "blips://k@broker.example",
            Endpoint("blip", "broker.example", 5555, tls=True, key="k"),
            "broker.example:5555",
        ),
        ("blip://k@[::1]:7", Endpoint("blip", "::1", 7, tls=False, key="k"), "[::1]:7"),
        ("BLIP://k@h/", Endpoint("blip", "h", 5555, tls=False, key="k"), "h:5555"),
        ("blip://", Endpoint("blip", "127.0.0.1", 5555, tls=False, key=""), "127.0.0.1:5555"),
        (
            "blip://a%3Ab%40c:%2Fd@h:1",
            Endpoint("blip", "h", 1, tls=False, key="a:b@c:/d"),
            "h:1",
        ),
        ("vibe://t@h", Endpoint("vibe", "h", 2925, tls=False, key="t"), "h:2925"),
        (
            "vibes://ada:s%3Ae%40c:et@h:1",
            Endpoint("vibe", "h", 1, tls=True, key="s:e@c:et", user="ada"),
            "h:1",
        ),
        (
            "vibe://a%3Ab:c@h",
            Endpoint("vibe", "h", 2925, tls=False, key="c", user="a:b"),
            "h:2925",
        ),
        ("qumbed://h", Endpoint("qumbed", "h", 6121, tls=False, key=""), "h:6121"),
        (
            f"qumbed://a:b@h:1?fingerprint={64 * 'a'}",
            Endpoint("qumbed", "h", 1, tls=False, key="a:b", fingerprint=64 * "a"),
            "h:1",
        ),
        (
            f"qumbed://h/?fingerprint={':'.join(32 * ['0A'])}",
            Endpoint("qumbed", "h", 6121, tls=False, key="", fingerprint=32 * "0a"),
            "h:6121",
        ),
    ],
)
def test_a_url_names_an_endpoint(url: str, endpoint: Endpoint, address: str) -> None:
    """Strand, host, port, TLS and key are parsed, with defaults for the missing parts."""
    assert endpoint == parse(url)
    assert address == parse(url).address


def test_a_separate_key_overrides_the_one_in_the_url() -> None:
    """Keys need not be part of URLs."""
    assert "other" == parse("blip://secret@h", key="other").key


def test_a_separate_key_is_the_password_of_the_user() -> None:
    """Nor need passwords be part of URLs."""
    endpoint = parse("vibe://ada:@h", key="s:e@cret")

    assert ("ada", "s:e@cret") == (endpoint.user, endpoint.key)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "secret",
        "http://secret@h",
        "s://secret@h",
        "qumbeds://secret@h",
        "blip:secret@h",
        "blip://h:secret",
        "blip://secret@h:0",
        "blip://secret@h:65536",
        "blip://secret@[::1",
        "blip://secret@a..b:1",
        f"blip://secret@{64 * 'a'}:1",
        "blip://secret@h/path",
        "blip://secret@h?query",
        "blip://secret@h#fragment",
        "blip://secret%ff@h",
        "vibe://secret%ff:secret@h",
        "vibe://u:secret%ff@h",
        f"vibe://secret@h?fingerprint={64 * 'a'}",
        "qumbed://secret@h?fingerprint=secret",
        f"qumbed://secret@h?fingerprint={63 * 'a'}",
        f"qumbed://secret@h?fingerprint={64 * 'a'}&secret=1",
        f"qumbed://secret@h?other={64 * 'a'}",
        "qumbed://secret@h?fingerprint=",
        "qumbed://secret@h?secret",
    ],
)
def test_a_malformed_url_is_refused_without_quoting_it(url: str) -> None:
    """An error may be logged, so it never holds a key."""
    with pytest.raises(InvalidArgument) as caught:
        parse(url)

    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "127.0.0.1:5555",
            f"a broker URL starts with one of {SCHEMES}, for example {EXAMPLE}",
        ),
        ("blip://k@h:99999", "blip URL: the port must be a number from 1 to 65535"),
        ("blip://k@h:0", "blip URL: the port must be a number from 1 to 65535"),
        ("blip://k@h:x", "blip URL: the port must be a number from 1 to 65535"),
    ],
)
def test_the_error_says_what_a_valid_url_looks_like(url: str, expected: str) -> None:
    """By an example, or by the valid range."""
    with pytest.raises(InvalidArgument) as caught:
        parse(url)

    assert expected == str(caught.value)


def test_an_endpoint_shows_no_key() -> None:
    """A repr may end up in a log, so it holds no secret."""
    assert "secret" not in repr(parse("blip://secret@h"))
    assert "secret" not in repr(parse("vibe://secret:secret@h"))
