"""Answers of the broker: receipts."""

from braidmq.client.answers import Receipt


def test_a_receipt_claims_nothing_by_default() -> None:
    """Id, repetition and delivery count are set only when they are known."""
    receipt = Receipt("orders", 1, durable=True)

    assert (None, False, None) == (receipt.id, receipt.repeated, receipt.delivered)
