"""Drawing wherever a client may run."""

import pytest

from sqsgd.audit.noise_reuse import everywhere
from sqsgd.randomness import secure_rng, seeded_rng


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_drawing_everywhere():
    drawn = everywhere(secure_rng, lambda rng, which: [rng.take(16).tobytes()])
    assert len(drawn.pieces) == len(set(drawn.pieces)) == 13
    assert drawn.refused == []
    refused = everywhere(lambda: seeded_rng(1), lambda rng, which: [rng.take(16).tobytes()])
    assert refused.refused == ["os.fork", "multiprocessing"]
    assert len(refused.pieces) - len(set(refused.pieces)) == 3
