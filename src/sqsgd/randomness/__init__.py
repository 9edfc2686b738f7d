"""Two kinds of randomness that never mix: public streams and private generators.

**Public** streams (:mod:`public`) give what the server and the clients must agree on: rotation signs and
selected coordinates. **Private** generators (:mod:`private`) draw the noise of the privacy guarantee.
"""

from sqsgd.randomness.generators import Rngs, ranks_of, secure_rngs, seeded_rngs, uniforms_of
from sqsgd.randomness.private import Rng, check_rng, idle_rng, secure_rng, seeded_rng
from sqsgd.randomness.public import EVERYONE, PublicStream, many_words

__all__ = [
    "EVERYONE",
    "PublicStream",
    "Rng",
    "Rngs",
    "check_rng",
    "idle_rng",
    "many_words",
    "ranks_of",
    "secure_rng",
    "secure_rngs",
    "seeded_rng",
    "seeded_rngs",
    "uniforms_of",
]
