"""What the streams of a connection share."""

from braidmq.broker.authorize import ADMIN, PUBLISH, SUBSCRIBE, authorize
from braidmq.server.strands.qumbed.link import ANONYMOUS, Link, anonymous
from braidmq.server.strands.qumbed.mdns import node_name
from tests.unit.server.strands.qumbed.qumbed_by_hand import QumbedHand


def test_anonymous_may_do_all_but_administer() -> None:
    """A peer without a key can publish and subscribe."""
    principal = anonymous()

    assert ANONYMOUS == principal.name
    assert [True, True, False] == [
        authorize(principal, operation, "any") for operation in (PUBLISH, SUBSCRIBE, ADMIN)
    ]


def test_streams_share_the_tokens_of_their_connection() -> None:
    """With a rate limit there is one bucket for all of them; without one there is none."""
    limited, unlimited = (Link(None, rate, lambda _: None) for rate in (2, 0))

    assert limited.tokens is not None
    assert 2 == limited.tokens.rate
    assert unlimited.tokens is None


def test_a_node_has_one_name_everywhere() -> None:
    """It is derived from the gateway key; on the local network the port is appended."""
    options = QumbedHand().options

    assert f"{options.node_id}-6121" == node_name(options.gateway.public_key, 6121)
