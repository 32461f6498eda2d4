"""Expiry: when a message expires. Pure decisions."""


def expires_us(now_us: int, ttl_us: int) -> int:
    """Return when a message accepted now expires; 0 means never."""
    return now_us + ttl_us if ttl_us > 0 else 0


def is_expired(message_expires_us: int, now_us: int) -> bool:
    """Say whether a message has expired."""
    return 0 < message_expires_us <= now_us
