"""Attacks on a scheme as it runs, by real messages. A pass proves nothing: they failed at these sizes."""

from sqsgd.audit.checklist import Step, audit, steps
from sqsgd.audit.findings import Audit, Finding
from sqsgd.audit.subject import Subject

__all__ = ["Audit", "Finding", "Step", "Subject", "audit", "steps"]
