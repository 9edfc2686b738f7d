"""Attacks on a scheme as it runs: real messages from ``encode``, read by ``open`` and ``decode``.

The privacy proof is about the density that a mechanism states. The checks test the implementation against
it: no two inputs can be distinguished better than ε allows, by that density or by real reports
(``distinguishing``); reports follow that density (``goodness_of_fit``); generators are keyed by the operating
system and no two reports share noise (``noise``); a message holds nothing beside its columns and reveals no
direction beyond the reconstruction bound (``messages``), nor pictures (``inversion``). Schemes with a central
guarantee have their own checks (``central``).

An audit that passes proves nothing: it failed to break the scheme at the stated sizes and confidence.
"""

from sqsgd.audit.checklist import Step, audit, steps
from sqsgd.audit.findings import Audit, Finding, Pictures
from sqsgd.audit.subject import Subject

__all__ = ["Audit", "Finding", "Pictures", "Step", "Subject", "audit", "steps"]
