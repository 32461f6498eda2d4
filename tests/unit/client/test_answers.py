"""What a broker answers."""

from braidmq.client.answers import Receipt


def test_a_receipt_claims_nothing_by_default() -> None:
    """Id and repetition are said only when they are known."""
    receipt = Receipt("orders", 1, durable=True)

    assert (None, False, None) == (receipt.id, receipt.repeated, receipt.delivered)
