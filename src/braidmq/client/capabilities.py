"""Which strand has which feature: one table, consulted by the surface before it calls a strand.

A strand therefore never refuses an option it lacks, and no option is silently ignored. To add
one to `publish` or `subscribe`: put it into the signature in `surface` and the record in
`options`, give it a row here, and translate it in the strands that have it.

What depends on the broker at the other end, and not on the strand, is not in this table.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from braidmq.client.errors import NotSupported


class Support(NamedTuple):
    """Which strands have a feature.

    A text means no, and says why, or what to do instead.
    """

    blip: bool | str
    vibe: bool | str
    qumbed: bool | str


YES: Final = True
NO: Final = False

TABLE: Final[dict[str, Support]] = {
    # feature: blip, vibe, qumbed
    #
    # Options of `connect`.
    "tls": Support(YES, YES, "use a fingerprint, ca_file or insecure"),
    "private_key": Support(NO, NO, YES),
    "trust": Support(NO, NO, YES),
    "ca_file": Support(NO, NO, YES),
    "certificate": Support(NO, NO, YES),
    "insecure": Support(NO, NO, YES),
    "schemas": Support(NO, NO, YES),
    # Options of `publish` and `publish_many`.
    "qos 0": Support(YES, NO, NO),
    "headers": Support(NO, YES, NO),
    "priority": Support(NO, YES, NO),
    "ttl": Support(NO, "declare the queue with a ttl", NO),
    "recipient": Support(NO, NO, YES),
    "schema": Support(NO, NO, YES),
    "envelope": Support(NO, NO, YES),
    # Options of `subscribe`, which has `qos`, `schema` and `envelope` as well.
    "subscription_id": Support(YES, NO, "the broker recognises a key that returns"),
    "keep": Support(YES, "a queue keeps its messages anyway", YES),
    "on_gap": Support(
        YES, "a queue keeps its messages meanwhile", "the broker does not report gaps"
    ),
    # Methods.
    "nack": Support(
        "the broker redelivers what is not acknowledged",
        YES,
        "a message is settled when it is delivered",
    ),
    "queues": Support(NO, YES, NO),
    "stats": Support(YES, "ask for a queue_info", NO),
}

STRANDS: Final = Support._fields


def has(strand: str, feature: str) -> bool:
    """Tell whether *strand* has *feature*; every strand has what is not in the table."""
    return feature not in TABLE or getattr(TABLE[feature], strand) is True


def check(strand: str, features: Iterable[str]) -> None:
    """Raise NotSupported for the first of *features* that *strand* lacks."""
    for feature in features:
        if not has(strand, feature):
            support = TABLE[feature]
            reason = getattr(support, strand)
            others = [name for name in STRANDS if getattr(support, name) is True]
            raise NotSupported(
                strand, feature, reason=reason or "", supported_by=others[0] if others else ""
            )


def check_options(strand: str, given: NamedTuple, defaults: NamedTuple) -> None:
    """Raise NotSupported for an option in *given* that *strand* lacks.

    Both are the same record of options. An option that was left at its default was not asked
    for; the common case, none at all, is one comparison of two tuples.
    """
    if given != defaults:
        names = zip(given._fields, given, defaults, strict=True)
        check(
            strand,
            (
                f"qos {int(value)}" if name == "qos" else name
                for name, value, default in names
                if value != default
            ),
        )
