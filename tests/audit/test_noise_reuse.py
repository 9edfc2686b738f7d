"""Drawing in every setting a client may run in."""

import pytest

from sqsgd.audit._noise_reuse import draw_in_every_setting
from sqsgd.randomness import secure_rng, seeded_rng


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_no_setting_repeats_another():
    drawn = draw_in_every_setting(secure_rng, lambda rng, which: [rng.take(16).tobytes()])
    assert len(drawn.pieces) == len(set(drawn.pieces)) == 13
    assert drawn.refused == []
    refused = draw_in_every_setting(lambda: seeded_rng(1), lambda rng, which: [rng.take(16).tobytes()])
    assert refused.refused == ["os.fork", "multiprocessing"]
    assert len(refused.pieces) - len(set(refused.pieces)) == 3
