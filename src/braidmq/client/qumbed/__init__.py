"""The client over the Qumbed strand: what is sealed at one end is opened at the other.

It knows no other strand; what they share lies above it. It is imported when it is used: boxes
and QUIC take libraries that programs on other strands need not load.

`KeyPair` and `TrustList` are for users: pass them to `braidmq.connect` as `private_key` and
`trust`.
"""

from braidmq.client.qumbed.boxes import KeyPair
from braidmq.client.qumbed.trust import TrustList

__all__ = ["KeyPair", "TrustList"]
