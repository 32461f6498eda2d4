"""The client over the Qumbed strand: messages are sealed at one end and opened at the other.

It knows no other strand; what they share is in `client`. It is imported when it is first used:
boxes and QUIC need libraries that programs on other strands should not have to load.

`KeyPair` and `TrustList` are for users: pass them to `braidmq.connect` as `private_key` and
`trust`.
"""

from braidmq.client.qumbed.boxes import KeyPair
from braidmq.client.qumbed.trust import TrustList

__all__ = ["KeyPair", "TrustList"]
