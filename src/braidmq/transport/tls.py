"""TLS: a listener's context, and the layer between a socket and its wire.

asyncio's own layer closes a connection as soon as the peer ends its half, so that answers in
progress are lost. This one keeps our half open, so that TLS behaves as plain TCP does.
"""

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

from braidmq.base.errors import ConfigError

READ_BYTES: Final = 256 * 1024
"""The most that is decrypted at once."""


def server_context(section: str, certificate: Path, key: Path) -> ssl.SSLContext:
    """Return a TLS 1.3 server context, or raise ConfigError naming the setting."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        # Without a password, or OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        problem = (
            f"{certificate} cannot be used with {key}: one of them is damaged or encrypted"
        )
        reason = f", or they do not match ({error.reason or error.strerror or 'not PEM'})"
        raise ConfigError(f"{section}.tls_cert", problem + reason) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(
            f"{section}.tls_cert", f"cannot be used with its key: {reason}"
        ) from None
    return context


class TlsLayer(asyncio.Protocol):
    """TLS on one accepted socket: records in and out below, plain bytes above.

    *carried* learns of the connection after the handshake, and of its end in any case. A
    handshake that takes longer than *handshake_timeout_s* ends the connection.
    """

    def __init__(
        self, context: ssl.SSLContext, carried: asyncio.Protocol, *, handshake_timeout_s: float
    ) -> None:
        self._carried = carried
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_shaken = False
        self._is_finished = False  # the peer has ended its half
        self._raw: asyncio.Transport | None = None
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(handshake_timeout_s, self._give_up)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the peer's side of the handshake."""
        # uvloop's transports have the methods of asyncio.Transport, but not its name.
        self._raw = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Decrypt it, and pass it on."""
        assert self._raw is not None
        self._incoming.write(data)
        if self._is_shaken or self._shake_hands(self._raw):
            self._read(self._raw)

    def eof_received(self) -> bool:
        """Keep our half open, as if the peer had ended its half in TLS."""
        assert self._raw is not None
        if self._is_shaken:
            self._finish()
        return self._is_shaken and not self._raw.is_closing()

    def pause_writing(self) -> None:
        """Pass on that the output buffer is full."""
        if self._is_shaken:
            self._carried.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the output buffer has room."""
        if self._is_shaken:
            self._carried.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on the end."""
        self._deadline.cancel()
        self._raw = None
        self._carried.connection_lost(exc)

    def _give_up(self) -> None:
        if self._raw is not None:
            self._raw.abort()

    def _shake_hands(self, raw: asyncio.Transport) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            raw.write(self._outgoing.read())
            return False
        except ssl.SSLError:
            raw.write(self._outgoing.read())  # the alert says why
            raw.close()
            return False
        raw.write(self._outgoing.read())
        self._deadline.cancel()  # the wire's own, which covers authentication too, goes on
        self._is_shaken = True
        self._carried.connection_made(_TlsTransport(raw, self._tls, self._outgoing))
        return True

    def _read(self, raw: asyncio.Transport) -> None:
        chunks: list[bytes] = []
        is_broken = False
        is_finished = True
        try:
            while chunk := self._tls.read(READ_BYTES):
                chunks.append(chunk)
        except ssl.SSLWantReadError:
            is_finished = False
        except ssl.SSLZeroReturnError:
            pass  # both ends have sent close_notify
        except ssl.SSLError:
            is_broken = True
        raw.write(self._outgoing.read())
        # After its close_notify a peer must send nothing; what it sends is dropped.
        if chunks and not self._is_finished:
            self._carried.data_received(b"".join(chunks))
        if is_broken:
            raw.abort()
        elif is_finished:
            self._finish()

    def _finish(self) -> None:
        if not self._is_finished:
            self._is_finished = True
            if not self._carried.eof_received() and self._raw is not None:
                self._raw.close()


class _TlsTransport(asyncio.Transport):
    """The transport that the carried protocol sees."""

    def __init__(
        self, raw: asyncio.Transport, tls: ssl.SSLObject, outgoing: ssl.MemoryBIO
    ) -> None:
        super().__init__()
        self._raw = raw
        self._tls = tls
        self._outgoing = outgoing

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - asyncio's signature
        if name == "sslcontext":
            return self._tls.context
        return self._raw.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high=high, low=low)

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._raw.is_closing():
            return
        left = memoryview(data)
        while left:
            left = left[self._tls.write(left) :]
        self._raw.write(self._outgoing.read())

    def pause_reading(self) -> None:
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._raw.resume_reading()

    def is_closing(self) -> bool:
        return self._raw.is_closing()

    def close(self) -> None:
        if not self._raw.is_closing():
            with suppress(ssl.SSLError):
                self._tls.unwrap()  # sends close_notify, and does not wait for the peer's
            self._raw.write(self._outgoing.read())
            self._raw.close()

    def abort(self) -> None:
        self._raw.abort()
