"""Binding: the address that a listener gets, and the error if it gets none."""

import socket
from pathlib import Path

import pytest

from braidmq.base.errors import AddressInUseError
from braidmq.transport.binding import bind_tcp, bind_udp, shown_address

HAS_IPV6 = Path("/proc/net/if_inet6").exists()


def test_port_0_means_any_free_port() -> None:
    """The shown address has the actual port."""
    with bind_tcp("blip", "127.0.0.1", 0) as bound:
        assert f"127.0.0.1:{bound.getsockname()[1]}" == shown_address(bound)
        assert 0 != bound.getsockname()[1]


@pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6")
def test_an_ipv6_address_is_shown_in_brackets() -> None:
    """To separate the port from the address."""
    with bind_tcp("blip", "::1", 0) as bound:
        assert f"[::1]:{bound.getsockname()[1]}" == shown_address(bound)


def test_an_address_in_use_is_an_error() -> None:
    """It names strand, address and reason, and has exit code 69."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUseError, match=f"blip: .*127.0.0.1:{port}: ") as caught:
            bind_tcp("blip", "127.0.0.1", port)

    assert 69 == caught.value.exit_code


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 300])
def test_an_unknown_host_is_the_same_error(host: str) -> None:
    """A name that is invalid or cannot be resolved does not end in a traceback."""
    with pytest.raises(AddressInUseError, match="blip: cannot listen on"):
        bind_tcp("blip", host, 0)


def test_the_port_of_a_stopped_broker_can_be_bound_again() -> None:
    """Connections in TIME_WAIT do not prevent the next start."""
    with bind_tcp("blip", "127.0.0.1", 0) as bound:
        assert 1 == bound.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)


def test_two_brokers_never_share_a_udp_port() -> None:
    """Each would lose datagrams to the other, so the second bind is an error."""
    with bind_udp("qumbed", "127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUseError, match=f"qumbed: .*127.0.0.1:{port}: ") as caught:
            bind_udp("qumbed", "127.0.0.1", port)

    assert 69 == caught.value.exit_code
    assert socket.SOCK_DGRAM == taken.type


def test_a_bound_socket_does_not_block_the_loop() -> None:
    """Accepting and reading go through the event loop."""
    with bind_tcp("blip", "127.0.0.1", 0) as tcp, bind_udp("qumbed", "127.0.0.1", 0) as udp:
        assert [False, False] == [tcp.getblocking(), udp.getblocking()]
