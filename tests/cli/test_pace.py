"""Something done now and then."""

from sqsgd.cli._pace import Pace


def test_it_is_time_at_once_and_then_after_the_wait():
    times = iter([5.0, 5.1, 7.9, 8.0, 10.9, 99.0])
    pace = Pace(3.0, clock=lambda: next(times))
    assert [pace.due() for _ in range(6)] == [True, False, False, True, False, True]
