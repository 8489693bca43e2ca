"""Signals are noted down, and handlers are given back."""

import os
import signal
import threading

import pytest

from suprank.training.signals import SIGNALS, stop_on_signals


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted_and_nothing_else_happens(number):
    with stop_on_signals() as stop:
        assert stop.signal == 0
        os.kill(os.getpid(), number)
        assert stop.signal == number


def test_the_first_signal_is_the_one_that_counts():
    with stop_on_signals() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGTERM)
        assert stop.signal == signal.SIGTERM


@pytest.mark.parametrize("before", [(), (signal.SIGTERM,)])
def test_a_second_interrupt_stops_at_once_whatever_came_before(before):
    with stop_on_signals():
        for number in (*before, signal.SIGINT):
            signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_handlers_are_given_back_also_after_an_error():
    def own(number, frame):
        raise AssertionError

    earlier = signal.signal(signal.SIGUSR1, own)
    try:
        expected = [signal.getsignal(number) for number in SIGNALS]
        with stop_on_signals():
            assert all(signal.getsignal(number) not in expected for number in SIGNALS)
        assert [signal.getsignal(number) for number in SIGNALS] == expected
        with pytest.raises(ValueError, match="within"), stop_on_signals():
            raise ValueError("within")
        assert [signal.getsignal(number) for number in SIGNALS] == expected
    finally:
        signal.signal(signal.SIGUSR1, earlier)


def test_another_thread_has_a_wish_that_never_comes():
    expected, found = [signal.getsignal(number) for number in SIGNALS], []

    def elsewhere():
        with stop_on_signals() as stop:
            found.append((stop.signal, [signal.getsignal(number) for number in SIGNALS]))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [(0, expected)]
