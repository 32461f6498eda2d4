"""The texts of refusals by a limit."""

from braidmq.base.refusals import by_bound, by_setting


def test_a_refusal_by_a_setting_names_it_its_value_and_the_operator() -> None:
    """So a user knows what to ask for, and whom."""
    text = by_setting("too many messages", "limits.messages_per_s", 10)

    assert (
        "too many messages: limits.messages_per_s is 10; whoever runs the broker may raise it"
        == text
    )


def test_a_refusal_by_a_bound_says_that_it_cannot_be_raised() -> None:
    """Then there is no one to ask."""
    text = by_bound("too many topics", 5, "in one broker")

    assert "too many topics: at most 5 in one broker; no setting raises it" == text
