"""Binding: which address a listener gets, and one error when it gets none."""

import socket
from pathlib import Path

import pytest

from braidmq.base.errors import AddressInUseError
from braidmq.transport.binding import bind_tcp, bind_udp, shown_address

HAS_IPV6 = Path("/proc/net/if_inet6").exists()


def test_port_0_is_any_free_port() -> None:
    """The address shown is the one that was given."""
    with bind_tcp("blip", "127.0.0.1", 0) as bound:
        assert f"127.0.0.1:{bound.getsockname()[1]}" == shown_address(bound)
        assert 0 != bound.getsockname()[1]


@pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6")
def test_an_ipv6_address_is_shown_in_brackets() -> None:
    """So that the port can be told from the address."""
    with bind_tcp("blip", "::1", 0) as bound:
        assert f"[::1]:{bound.getsockname()[1]}" == shown_address(bound)


def test_a_taken_address_is_an_error_with_its_name() -> None:
    """Strand, address and reason; exit code 69."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUseError, match=f"blip: .*127.0.0.1:{port}: ") as caught:
            bind_tcp("blip", "127.0.0.1", port)

    assert 69 == caught.value.exit_code


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 300])
def test_a_host_that_is_none_is_the_same_error(host: str) -> None:
    """A name that cannot be resolved, or is no name, does not end in a traceback."""
    with pytest.raises(AddressInUseError, match="blip: cannot listen on"):
        bind_tcp("blip", host, 0)


def test_a_port_of_a_broker_that_just_ended_can_be_had_again() -> None:
    """Connections that linger in the kernel do not keep the next start from binding."""
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
