"""The core abstractions: Transform, Mechanism, Scheme.

A scheme is a list of transforms (public, linear, inverted by the server) and one mechanism (the only private
step): gradient → transforms → mechanism → columns → bytes, and back.
"""

from sqsgd.core.aggregate import Aggregate
from sqsgd.core.mechanism import NOT_PRIVATE, Mechanism, Notion, Privacy, Traits
from sqsgd.core.scheme import Scheme
from sqsgd.core.transforms import Codes, Estimate, Indices, Transform, Vectors

__all__ = [
    "NOT_PRIVATE",
    "Aggregate",
    "Codes",
    "Estimate",
    "Indices",
    "Mechanism",
    "Notion",
    "Privacy",
    "Scheme",
    "Traits",
    "Transform",
    "Vectors",
]
