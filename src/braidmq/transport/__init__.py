"""Sockets that carry a session: TCP, QUIC, TLS. They understand none of the bytes."""
