"""Trying to break a scheme as it runs: real messages from ``encode``, read by ``open`` and ``decode``.

What privacy is proved of is the density that a mechanism states. So the attempts form a chain: no two
inputs differ in that density by more than ε (``ratio``); what is sent has that density (``law``), and does
not tell two inputs apart better than ε lets it, whatever the density says (``distinguishing``); no two
reports share their noise (``streams``); nothing travels beside the columns (``messages``); and one report
gives directions and pictures away no better than the bound (``guessing``, ``inversion``).

An audit that passes proves nothing. It has tried, at the stated sizes and confidence, and not succeeded.
"""

from sqsgd.audit.findings import Audit, Finding, Pictures
from sqsgd.audit.steps import Step, audit, steps
from sqsgd.audit.subject import Subject

__all__ = ["Audit", "Finding", "Pictures", "Step", "Subject", "audit", "steps"]
