"""Binding: a host name and a port become a bound socket, or one typed error that says why not.

Every listener binds here, before the log is recovered, so that a start fails at once when the
address is taken. A bound socket does not listen yet.
"""

import socket

from braidmq.base.errors import AddressInUseError


def bind_tcp(owner: str, host: str, port: int) -> socket.socket:
    """Return a TCP socket for *owner*, a strand or another listener, bound to the address.

    It has SO_REUSEADDR, so that connections of the last run that linger in the kernel do not
    prevent a restart.

    Raises:
        AddressInUseError: The address cannot be bound.
    """
    return _bind(owner, host, port, socket.SOCK_STREAM)


def bind_udp(owner: str, host: str, port: int) -> socket.socket:
    """Return a UDP socket for *owner*, bound to the address.

    It has no SO_REUSEADDR, with which two brokers could share the port and each lose datagrams.

    Raises:
        AddressInUseError: The address cannot be bound.
    """
    return _bind(owner, host, port, socket.SOCK_DGRAM)


def shown(host: str, port: int) -> str:
    """Return an address as text, with brackets around IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def shown_address(bound: socket.socket) -> str:
    """Return host and port of a bound socket as text."""
    name = bound.getsockname()
    return shown(name[0], name[1])


def _bind(owner: str, host: str, port: int, kind: socket.SocketKind) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_PASSIVE)
        # The first address only: a listener has one socket, and one address to report.
        family, _, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that IDNA cannot encode
        raise AddressInUseError(owner, shown(host, port), _reason(error)) from None
    try:
        if kind == socket.SOCK_STREAM:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.setblocking(False)  # noqa: FBT003 - the socket's signature
    except OSError as error:
        bound.close()
        raise AddressInUseError(owner, shown(host, port), _reason(error)) from None
    return bound


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
