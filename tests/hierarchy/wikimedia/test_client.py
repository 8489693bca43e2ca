"""Politeness and patience, against a server with faults; no test waits for real."""

import itertools
import time
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suprank.hierarchy.errors import BadReplyError, GaveUpError, RequestRefusedError
from suprank.hierarchy.wikimedia.client import Client, RateLimiter, retry_after, user_agent
from tests.hierarchy.wikimedia import fake_server as faults
from tests.hierarchy.wikimedia.fake_server import World, serving
from tests.hierarchy.wikimedia.worlds import Clock, client

FORM = {"action": "wbgetentities", "ids": "Q1", "props": "claims"}


@pytest.fixture
def fake():
    with serving(World(items={"Q1": {"P31": ["Q2"]}})) as fake:
        yield fake


def fetch(fake, clock=None, **options):
    with client(clock, **options) as one:
        return one.fetch(fake.wikidata, FORM)


def test_every_request_says_who_asks_and_lets_lagging_servers_refuse(fake):
    reply = fetch(fake)
    assert reply.payload["entities"]["Q1"]["id"] == "Q1"
    assert reply.url.startswith(f"{fake.wikidata}?action=wbgetentities&ids=Q1")
    (request,) = fake.asked
    assert request.agent == user_agent("tester@example.org")
    assert request.form == {**FORM, "format": "json", "maxlag": "5"}


@pytest.mark.parametrize("contact", ["you@org", "first.last+tag@example.org", "https://example.org/~me", "http://x.org/a?b=c"])
def test_contacts_are_addresses(contact):
    assert f"({contact})" in user_agent(contact)


@pytest.mark.parametrize(
    "contact", ["", "me", "@", "a@", "you @org", "ftp://x", "https://", "you@org)", "you@org\r\nX: y", "ü@example.org"]
)
def test_what_is_none_is_refused(contact):
    with pytest.raises(ValueError, match="neither an e-mail address nor"):
        user_agent(contact)


@pytest.mark.parametrize(("header", "seconds"), [("7", 7), ("1.5", 1.5), ("0", 1), ("nonsense", 1), (None, 1)])
@pytest.mark.parametrize("code", [429, 503])
def test_a_server_that_says_later_is_obeyed(fake, code, header, seconds):
    fake.fault(faults.status(code, **({} if header is None else {"Retry_After": header})))
    clock = Clock()
    assert fetch(fake, clock).status == 200
    assert clock.waits == [seconds]
    assert len(fake.asked) == 2


def test_a_lagging_database_is_given_five_seconds_or_what_it_asks_for(fake):
    fake.fault(faults.api_error("maxlag", "Waiting for db1: 7 seconds lagged", Retry_After="2"))
    fake.fault(faults.api_error("maxlag", "Waiting for db1: 7 seconds lagged", Retry_After="60"))
    clock, said = Clock(), []
    fetch(fake, clock, report_wait=said.append)
    assert clock.waits == [5, 60]
    assert said[0].startswith("waiting 5 s: 127.0.0.1")
    assert said[0].endswith("lags: Waiting for db1: 7 seconds lagged")
    assert said[1] == ""


def test_waits_double_up_to_a_cap_with_some_chance_until_patience_ends(fake):
    fake.fault(faults.status(503), times=100)
    clock = Clock()
    with pytest.raises(GaveUpError, match=r"answered 503\. That is 15 in a row.*patience is 1000 s. Replies so far are saved"):
        fetch(fake, clock, patience=1000)
    assert clock.waits == [1, 2, 4, 8, 16, 32, 64, *[120] * 7]  # 967 s
    assert len(fake.asked) == 15


def test_chance_only_lengthens_a_wait(fake):
    fake.fault(faults.status(503))
    clock = Clock()
    with client(clock) as one:
        one.chance = lambda: 0.5
        one.fetch(fake.wikidata, FORM)
    assert clock.waits == [1.25]


def test_who_asks_for_a_day_is_given_up_at_once(fake):
    fake.fault(faults.status(429, Retry_After="86400"))
    clock = Clock()
    with pytest.raises(GaveUpError, match="the next wait would be 86400 s"):
        fetch(fake, clock)
    assert clock.waits == []


def test_a_good_answer_makes_patience_new(fake):
    fake.fault(faults.status(503), lambda request: request.number % 2 == 1, times=20)
    clock = Clock()
    with client(clock, patience=10) as one:
        for _ in range(20):
            one.fetch(fake.wikidata, FORM)
            one.reset_patience()
    assert clock.waits == [1] * 20


def test_403_ends_it_with_the_servers_words_and_is_never_asked_again(fake):
    fake.fault(faults.refuse_agent)
    clock = Clock()
    with pytest.raises(GaveUpError, match=r"403.*respect our robot policy.*suprank/.*tester@example.org.*give contact"):
        fetch(fake, clock)
    assert (len(fake.asked), clock.waits) == (1, [])


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (faults.html_as_success, "'text/html; charset=utf-8', not JSON: <!DOCTYPE html><title>Wikimedia Error"),
        (faults.html_as_json, "did not answer JSON .*: <!DOCTYPE html>"),
        (faults.cut_json, 'did not answer JSON .*: {"entities"'),
        (faults.reset, '{"entities"'),
        (faults.status(500), "answered 500: <html>"),
        (faults.status(502), "answered 502"),
        (faults.api_error("internal_api_error_DBQueryError", "oops"), "internal_api_error_DBQueryError: oops"),
        (lambda handler, body: faults.send(handler, b"[1]"), "not an object"),
        (lambda handler, body: faults.send(handler, b'{"error": "yes"}'), "answered an error"),
        (lambda handler, body: faults.send(handler, b"\xff\xfe{}"), "did not answer JSON"),
        (lambda handler, body: faults.send(handler, b"[" * 100_000), "did not answer JSON"),
        (lambda handler, body: faults.send(handler, b'{"error": {"code": "\\ud800"}}'), r"answered \\ud800"),
        (lambda handler, body: faults.send(handler, body, headers={"Content-Encoding": "gzip"}), "127.0.0.1"),
    ],
)
def test_a_reply_that_cannot_be_read_is_bad_and_its_beginning_is_kept(fake, fault, said):
    fake.fault(fault)
    with pytest.raises(BadReplyError, match=said):
        fetch(fake)


def test_only_the_first_200_bytes_are_kept():
    assert len(str(BadReplyError("bad", b"x" * 1000))) == len("bad: ") + 200


def test_a_reply_that_never_comes_is_bad(fake):
    fake.fault(faults.slow(0.4))
    with pytest.raises(BadReplyError, match="timed out"):
        fetch(fake, timeout=0.1)


def test_a_reply_that_never_ends_is_bad(fake):
    def drip(handler, body):
        faults.send(handler, b"{", length=10**9)
        with suppress(OSError):  # nobody reads any more
            while True:
                handler.wfile.write(b" ")
                time.sleep(0.001)

    fake.fault(drip)
    seconds = itertools.count(step=10)  # ten between two looks at the clock
    with (
        Client("tester@example.org", RateLimiter(1000, clock=lambda: next(seconds)), timeout=20) as one,
        pytest.raises(BadReplyError, match="still sending after"),
    ):
        one.fetch(fake.wikidata, FORM)


@pytest.mark.parametrize(
    ("fault", "code"),
    [(faults.api_error("toomanyvalues"), "toomanyvalues"), (faults.status(414), "toomanyvalues")],
)
def test_too_many_keys_are_said_to_be(fake, fault, code):
    fake.fault(fault)
    with pytest.raises(RequestRefusedError) as refused:
        fetch(fake)
    assert refused.value.code == code


@pytest.mark.parametrize(
    "fault", [faults.status(404), faults.status(301, Location="https://x.org"), faults.api_error("blocked")]
)
def test_a_wrong_address_or_a_block_ends_it(fake, fault):
    fake.fault(fault)
    with pytest.raises(GaveUpError):
        fetch(fake)
    assert len(fake.asked) == 1


def test_a_server_that_was_never_there_is_given_up_soon_and_one_that_was_is_waited_for():
    with serving(World(items={"Q1": {}})) as gone:
        pass
    clock = Clock()
    with pytest.raises(GaveUpError, match=r"cannot be reached .* Is http://127.0.0.1.* right"):
        fetch(gone, clock)
    assert clock.waits == [1, 2]
    clock = Clock()
    with client(clock, patience=100) as one:
        with serving(World(items={"Q1": {}})) as there:
            one.fetch(there.wikidata, FORM)
        with pytest.raises(GaveUpError, match="in a row"):
            one.fetch(there.wikidata, FORM)
    assert clock.waits == [1, 2, 4, 8, 16, 32]


@given(st.floats(1, 1000), st.lists(st.floats(0, 40), min_size=2, max_size=60))
def test_no_minute_sees_more_than_the_rate(rate, work):
    clock = Clock()
    limiter = RateLimiter(rate, clock=clock, sleep=clock.sleep)
    sent = []
    for seconds in work:
        limiter.wait_turn()
        sent.append(clock())
        clock.time += seconds  # the reply takes its time
    for begin in sent:
        assert sum(begin <= one < begin + 60 - 1e-6 for one in sent) <= rate + 1


def test_requests_are_spaced_evenly_and_the_first_waits_for_nothing():
    clock = Clock()
    limiter = RateLimiter(120, clock=clock, sleep=clock.sleep)
    for _ in range(5):
        limiter.wait_turn()
    assert clock.slept == [0.5] * 4
    clock.time += 10
    limiter.wait_turn()  # a slow reply is no credit for a burst
    limiter.wait_turn()
    assert clock.slept == [0.5] * 5


def test_a_sleep_that_ends_early_is_slept_on():
    clock = Clock()
    limiter = RateLimiter(60, clock=clock, sleep=lambda seconds: clock.sleep(min(seconds, 0.4)))
    limiter.wait_turn()
    limiter.wait_turn()
    assert clock() == pytest.approx(1001)


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_a_rate_must_be_one(rate):
    with pytest.raises(ValueError, match="requests per minute"):
        RateLimiter(rate)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("1", 1),
        ("1.5", 1.5),
        (" 120 ", 120),
        ("Sun, 15 Nov 2026 12:00:30 GMT", 30),
        ("Sun, 15 Nov 2026 11:59:00 GMT", 0),
        ("Sun, 15 Nov 2026 12:00:30 -0000", 30),
        ("-3", 0),
        ("nan", None),
        ("soon", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_a_number_or_a_date(header, seconds):
    assert retry_after(header, datetime(2026, 11, 15, 12, tzinfo=UTC)) == seconds
