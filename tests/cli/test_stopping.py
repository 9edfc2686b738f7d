"""The first signal is a request, the second interrupts; afterwards the handlers are restored."""

import contextlib
import signal
import time

import pytest
from sqsgd.cli.options import stopping_between_rounds

BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def usual_handlers():
    """Python's own: a shell starts commands in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def handlers():
    return [signal.getsignal(each) for each in BOTH]


@pytest.mark.parametrize("number", BOTH)
def test_the_first_signal_is_recorded_and_announced(number, capfd):
    before = handlers()
    with stopping_between_rounds() as seen:
        assert seen == []
        signal.raise_signal(number)  # os.kill may reach another thread, and then us later
        assert seen == [number]
    assert handlers() == before
    assert capfd.readouterr().err == "stopping after this round; press again to stop now\n"


def test_the_second_signal_interrupts():
    with stopping_between_rounds() as seen:
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.6)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert seen == [signal.SIGINT]


def test_two_signals_at_once_are_one_request(capfd):
    """timeout(1) sends two."""
    with stopping_between_rounds() as seen:
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
        assert seen == [signal.SIGTERM]
    assert capfd.readouterr().err.count("stopping") == 1


def test_the_handlers_are_restored_after_a_failure():
    before = handlers()
    with contextlib.suppress(OSError), stopping_between_rounds():
        assert handlers() != before
        raise OSError("full")
    assert handlers() == before
