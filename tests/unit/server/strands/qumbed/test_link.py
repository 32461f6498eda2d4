"""What streams of one connection share."""

from braidmq.broker.authorize import ADMIN, PUBLISH, SUBSCRIBE, authorize
from braidmq.server.strands.qumbed.link import ANONYMOUS, Link, anonymous
from braidmq.server.strands.qumbed.mdns import node_name
from tests.unit.server.strands.qumbed.qumbed_by_hand import QumbedHand


def test_anonymous_may_do_all_but_administer() -> None:
    """Whoever is not asked who he is can publish and subscribe."""
    principal = anonymous()

    assert ANONYMOUS == principal.name
    assert [True, True, False] == [
        authorize(principal, operation, "any") for operation in (PUBLISH, SUBSCRIBE, ADMIN)
    ]


def test_tokens_are_earned_with_time() -> None:
    """As many as the rate at once, then one for each of its parts of a second."""
    link = Link(None, 2, lambda _: None)
    at_once = [link.earn_token(1_000_000) for _ in range(3)]
    later = [link.earn_token(now_us) for now_us in (1_400_000, 1_500_000, 1_500_000)]
    much_later = [link.earn_token(9_000_000) for _ in range(3)]

    assert [True, True, False] == at_once
    assert [False, True, False] == later
    assert [True, True, False] == much_later


def test_a_node_has_one_name_everywhere() -> None:
    """After its gateway key; on the local network the port is told as well."""
    options = QumbedHand().options

    assert f"{options.node_id}-6121" == node_name(options.gateway.public_key, 6121)
