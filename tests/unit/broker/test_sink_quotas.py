"""How many queries of sinks one principal may have, and to whom each is charged."""

from braidmq.broker.authorize import Principal
from braidmq.broker.quotas import Quotas, refusal
from tests.unit.broker.drive import Drive
from tests.unit.broker.test_sinks import begin, do_batch, plain


def test_queries_are_charged_to_the_principal_of_their_last_batch() -> None:
    """Once each, however many batches; plain writes are none. A restart counts the same."""
    drive = Drive()
    for batch in (1, 2):
        do_batch(drive, batch)
    do_batch(drive, 0, query="other")
    do_batch(drive, 0, query=plain(0))

    def used(name: str) -> int:
        return drive.broker.topics.accounts.of(name).used("sink_queries")

    before = used("ada")
    drive.restart()
    replayed = used("ada")
    drive.snapshot()
    drive.restart()
    restored = used("ada")
    drive.broker.sinks.begin("bob", "q", "", 3, [])
    drive.broker.sinks.finish()
    drive.commit()

    assert (2, 2, 2) == (before, replayed, restored)
    assert (1, 1) == (used("ada"), used("bob"))


def test_a_batch_that_the_log_refuses_is_charged_to_none() -> None:
    """Its query may be the first; one that was charged before stays so."""
    drive = Drive()
    account = drive.broker.topics.accounts.of("ada")
    for batch in (1, 2):
        begin(drive, 0, batch=batch)
        drive.commit()
        drive.broker.sinks.finish()
        charged = account.used("sink_queries")
        drive.refuse()

        assert (1, batch - 1) == (charged, account.used("sink_queries"))
        drive.broker.sinks.finish()
        drive.commit()


def test_a_principal_has_as_many_queries_as_its_quota_says() -> None:
    """Those that it has go on, plain writes are none of them, and others have their own."""
    drive = Drive()
    quotas = Quotas({"sink_queries": 1})
    ada = Principal("ada", publish=["*"], subscribe=[], quotas=quotas)
    bob = Principal("bob", publish=["*"], subscribe=[], quotas=quotas)
    sinks = drive.broker.sinks
    first = sinks.quota_refusal(ada, "q", "", 1)
    do_batch(drive, 1)

    assert "" == first == sinks.quota_refusal(ada, "q", "", 2)
    assert refusal("sink_queries", 1, "ada") == sinks.quota_refusal(ada, "new", "", 0)
    assert "" == sinks.quota_refusal(ada, plain(0), "", 0)
    assert "" == sinks.quota_refusal(bob, "new", "", 0)
