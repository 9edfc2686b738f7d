"""Attacks on a scheme as it runs: real messages from ``encode``, read by ``open`` and ``decode``.

The privacy proof is about the density that a mechanism states. The checks test the implementation against
it: no two inputs differ in that density by more than ε (``likelihood_ratio``); reports follow that density
(``goodness_of_fit``); reports of two inputs cannot be distinguished better than ε allows, whatever the
density says, for the worst pair (``distinguishing``) and for all pairs of many inputs (``tally``); generators
are keyed by the operating system and no two reports share noise (``noise_checks``); a message holds nothing
beside its columns (``messages``); and one report reveals directions and pictures no better than the
reconstruction bound allows (``direction_attack``, ``inversion``). Schemes with a central guarantee have
their own checks (``central``).

An audit that passes proves nothing: it failed to break the scheme at the stated sizes and confidence.
"""

from sqsgd.audit.checklist import Step, audit, steps
from sqsgd.audit.findings import Audit, Finding, Pictures
from sqsgd.audit.subject import Subject

__all__ = ["Audit", "Finding", "Pictures", "Step", "Subject", "audit", "steps"]
