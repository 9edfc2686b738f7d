"""Questions about a guarantee."""

import pytest

from sqsgd.core import Privacy


@pytest.mark.parametrize(
    ("notion", "delta", "answers"),
    [
        ("local", 0.0, (True, True, True)),
        ("local", 1e-9, (True, False, True)),
        ("per-weight", 0.0, (True, False, True)),
        ("central", 1e-5, (True, False, False)),
        ("none", 0.0, (False, False, False)),
    ],
)
def test_questions_about_a_guarantee(notion, delta, answers):
    privacy = Privacy(epsilon=1.0, notion=notion, delta=delta)
    assert (privacy.is_private, privacy.is_pure_local, privacy.protects_single_reports) == answers
