"""The core abstractions: a Scheme is a list of Transforms and one Mechanism, the only private step."""

from sqsgd.core.mechanism import NOT_PRIVATE, Mechanism, Notion, Privacy, Traits
from sqsgd.core.scheme import Aggregate, Scheme
from sqsgd.core.transforms import Codes, Estimate, Indices, Part, Transform, Vectors

__all__ = [
    "NOT_PRIVATE",
    "Aggregate",
    "Codes",
    "Estimate",
    "Indices",
    "Mechanism",
    "Notion",
    "Part",
    "Privacy",
    "Scheme",
    "Traits",
    "Transform",
    "Vectors",
]
