"""Dedup ids, and how long they are remembered."""

from braidmq.broker.dedup import EXPIRED_MAX, IDS_MAX, NEW, DedupWindow
from braidmq.broker.topics import Message, Topic, encode_headers

WINDOW_US = 100


def test_a_duplicate_finds_the_first_messages_id() -> None:
    """Within the window the same dedup id on the same topic is the same message."""
    window = DedupWindow(WINDOW_US)
    window.remember("a", "one", 7, 0)

    assert 7 == window.find("a", "one", WINDOW_US - 1)
    assert NEW == window.find("b", "one", WINDOW_US - 1)
    assert NEW == window.find("a", "two", WINDOW_US - 1)


def test_a_dedup_id_expires_with_the_window() -> None:
    """After the window the id is new again and uses no memory."""
    window = DedupWindow(WINDOW_US)
    window.remember("a", "one", 7, 0)
    window.remember("a", "two", 8, 50)

    assert NEW == window.find("a", "one", WINDOW_US)
    assert 1 == len(window)
    assert 8 == window.find("a", "two", WINDOW_US)


def test_a_refused_message_is_forgotten() -> None:
    """Its retry is accepted; forgetting it twice does no harm."""
    window = DedupWindow(WINDOW_US)
    window.remember("a", "one", 7, 0)
    window.forget("a", "one")
    window.forget("a", "one")

    assert NEW == window.find("a", "one", 1)


def test_the_window_of_a_retried_message_starts_at_its_acceptance() -> None:
    """The time of the refused attempt does not shorten it."""
    window = DedupWindow(WINDOW_US)
    window.remember("a", "one", 7, 0)
    window.forget("a", "one")
    window.remember("a", "one", 9, 60)

    assert 9 == window.find("a", "one", WINDOW_US + 1)
    assert [(60, "a", "one", 9)] == window.rows()
    assert NEW == window.find("a", "one", 60 + WINDOW_US)


def test_a_reused_id_is_remembered_again() -> None:
    """Recovery reads both messages with no lookup in between."""
    window = DedupWindow(WINDOW_US)
    window.remember("a", "one", 7, 0)
    window.remember("a", "one", 9, 150)

    assert 9 == window.find("a", "one", 200)


def test_a_window_is_restored_from_its_rows() -> None:
    """The restored window forgets each id at the same time as the original."""
    window = DedupWindow(WINDOW_US)
    window.remember("a", "one", 7, 0)
    window.remember("b", "two", 8, 30)
    window.remember("b", "gone", 9, 40)
    window.forget("b", "gone")
    again = DedupWindow(WINDOW_US)
    for row in window.rows():
        again.restore(row)

    assert [(0, "a", "one", 7), (30, "b", "two", 8)] == again.rows()
    assert (NEW, 8) == (again.find("a", "one", 110), again.find("b", "two", 110))


def test_the_number_of_remembered_ids_is_bounded() -> None:
    """A flood of new ids cannot fill the memory: the oldest are forgotten."""
    window = DedupWindow(WINDOW_US)
    for number in range(IDS_MAX + 2):
        window.remember("a", str(number), number + 1, 0)

    assert IDS_MAX == len(window)
    assert NEW == window.find("a", "1", 1)
    assert 3 == window.find("a", "2", 1)


def test_a_flood_of_one_owner_costs_no_other_an_id() -> None:
    """However many topics it spreads its ids over; alone it may use all the room."""
    window = DedupWindow(WINDOW_US, 1_000)
    for number in range(300):
        window.remember("quiet", str(number), 1, 0, b"ada")
    for number in range(3_000):
        window.remember("loud", str(number), 1, 1, b"bob")
    for number in range(9_000):
        window.remember(f"t{number}", "x", 1, 2, b"bob")

    kept = sum(window.find("quiet", str(number), 3) == 1 for number in range(300))
    assert (300, 1_000) == (kept, len(window))


def test_a_busy_topic_costs_the_owners_other_topics_no_id() -> None:
    """The oldest of the topic that holds the most go first."""
    window = DedupWindow(WINDOW_US, 1_000)
    for number in range(300):
        window.remember("quiet", str(number), 1, 0, b"ada")
    for number in range(3_000):
        window.remember("loud", str(number), 1, 1, b"ada")

    kept = sum(window.find("quiet", str(number), 3) == 1 for number in range(300))
    assert (300, 1) == (kept, window.find("loud", "2999", 3))
    assert NEW == window.find("loud", "0", 3)


def test_one_call_forgets_a_bounded_number_of_ids() -> None:
    """None holds up the event loop, and what has expired is not found meanwhile."""
    window = DedupWindow(WINDOW_US)
    for number in range(3 * EXPIRED_MAX):
        window.remember("a", str(number), 1, 0)
    sizes = []
    while len(window):
        assert NEW == window.find("a", str(3 * EXPIRED_MAX - 1), WINDOW_US)
        sizes.append(len(window))

    steps = [
        before - after for before, after in zip([3 * EXPIRED_MAX, *sizes], sizes, strict=False)
    ]
    assert (True, 4) == (max(steps) <= EXPIRED_MAX, len(steps))


def test_ids_expire_in_their_order_whichever_topic_they_are_of() -> None:
    """A quiet topic that was looked at late kept those of a busy one for another window."""
    window = DedupWindow(WINDOW_US)
    window.remember("busy", "0", 1, 0)
    for at_us in range(1, WINDOW_US):
        window.remember("busy", str(at_us), 1, at_us)
        window.remember(f"quiet{at_us}", "x", 1, at_us)
    window.expire(WINDOW_US)
    window.expire(WINDOW_US + 49)

    assert 2 * 50 == len(window)


def test_ids_are_charged_to_the_one_who_has_made_the_topic_again() -> None:
    """Its owner before it was deleted is not made to forget for it."""
    window = DedupWindow(WINDOW_US, 1_100)
    for number in range(500):
        window.remember("ada's", str(number), 1, 0, b"ada")
    window.remember("again", "old", 1, 0, b"ada")
    window.forget_topic("again")
    for number in range(450):
        window.remember(f"bob's{number % 3}", str(number), 1, 1, b"bob")
    for number in range(200):
        window.remember("again", str(number), 1, 1, b"bob")

    assert 500 == sum(window.find("ada's", str(number), 3) == 1 for number in range(500))


def test_ids_of_a_deleted_topic_are_new_again() -> None:
    """The message that had it is gone."""
    window = DedupWindow(WINDOW_US)
    window.remember("a", "one", 7, 0)
    window.remember("b", "one", 8, 0)
    window.forget_topic("a")

    assert (NEW, 8) == (window.find("a", "one", 1), window.find("b", "one", 1))


def test_long_ids_are_distinguished_and_stored_short() -> None:
    """A dedup id may be as long as a header, and a duplicate is still found."""
    window = DedupWindow(WINDOW_US)
    window.remember("a", "x" * 60_000, 7, 0)

    assert 7 == window.find("a", "x" * 60_000, 1)
    assert NEW == window.find("a", "x" * 59_999 + "y", 1)
    assert all(len(row[2]) < 100 for row in window.rows())


def test_long_ids_are_found_after_a_restart() -> None:
    """A snapshot holds them shortened, and they are not shortened a second time."""
    window = DedupWindow(WINDOW_US)
    window.remember("a", "x" * 65, 7, 0)
    again = DedupWindow(WINDOW_US)
    for row in window.rows():
        again.restore(row)

    assert 7 == again.find("a", "x" * 65, 1)
    assert window.rows() == again.rows()


def test_a_memory_only_message_is_remembered() -> None:
    """It has no id in the log, but its duplicate is found all the same."""
    window = DedupWindow(WINDOW_US)
    window.remember("a", "one", 0, 0)

    assert 0 == window.find("a", "one", 1)


def test_the_headers_of_a_refused_message_say_which_id_to_forget() -> None:
    """A letter redirected by a full queue is forgotten under that queue's name."""
    window = DedupWindow(WINDOW_US)
    for topic, dedup_id in (("a", "one"), ("a", "two"), ("dlq.a", "two")):
        window.remember(topic, dedup_id, 7, 0)
    message = Message(Topic("a"), 1, b"")
    window.forget_message(message)
    message.headers = encode_headers({"k": "one"})
    window.forget_message(message)
    message.headers = encode_headers({"dedupId": "one"})
    letter = Message(Topic("dlq.a"), 1, b"")
    letter.headers = encode_headers({"dedupId": "two", "deathQueue": "a"})
    before = len(window)
    window.forget_message(message)
    window.forget_message(letter)

    assert (3, 1) == (before, len(window))
    assert 7 == window.find("dlq.a", "two", 1)
