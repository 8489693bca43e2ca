from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suprank.hierarchy.wikimedia.rate_limit import Pace, retry_after
from tests.hierarchy.wikimedia.worlds import Clock


@given(st.floats(1, 1000), st.lists(st.floats(0, 40), min_size=2, max_size=60))
def test_no_minute_sees_more_than_the_rate(rate, work):
    clock = Clock()
    pace = Pace(rate, clock=clock, sleep=clock.sleep)
    sent = []
    for seconds in work:
        pace.turn()
        sent.append(clock())
        clock.time += seconds  # the reply takes its time
    for begin in sent:
        assert sum(begin <= one < begin + 60 - 1e-6 for one in sent) <= rate + 1


def test_requests_are_spaced_evenly_and_the_first_waits_for_nothing():
    clock = Clock()
    pace = Pace(120, clock=clock, sleep=clock.sleep)
    for _ in range(5):
        pace.turn()
    assert clock.slept == [0.5] * 4
    clock.time += 10
    pace.turn()  # a slow reply is no credit for a burst
    pace.turn()
    assert clock.slept == [0.5] * 5


def test_a_sleep_that_ends_early_is_slept_on():
    clock = Clock()
    pace = Pace(60, clock=clock, sleep=lambda seconds: clock.sleep(min(seconds, 0.4)))
    pace.turn()
    pace.turn()
    assert clock() == pytest.approx(1001)


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_a_rate_must_be_one(rate):
    with pytest.raises(ValueError, match="requests a minute"):
        Pace(rate)


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
