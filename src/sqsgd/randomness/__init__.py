"""Two kinds of randomness that never mix: public streams and private generators.

**Public** streams (:mod:`public`) give what the server and the clients must agree on: rotation signs and
selected coordinates. **Private** generators (:mod:`private`) draw the noise of the privacy guarantee.
"""

from sqsgd.randomness.private import Rng, check_rng, idle_rng, secure_rng, seeded_rng
from sqsgd.randomness.public import EVERYONE, PublicStream

__all__ = ["EVERYONE", "PublicStream", "Rng", "check_rng", "idle_rng", "secure_rng", "seeded_rng"]
