"""What a node tells of how well a model does on its data: one private number, if its owner allows it.

A request for it has the form of a request for a report. Its scheme is ``evaluation``, its only option the
``metric``, and larger values than the bound of its task are clipped to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from sqsgd.checks import Vector
from sqsgd.core import Scheme
from sqsgd.mechanisms.one_number import OneNumber
from sqsgd.node.policy import Misfit, Policy, Refused
from sqsgd.node.request import MalformedRequest, Request
from sqsgd.node.structure import Structure

Measure: TypeAlias = Callable[[Structure, Vector], object]
"""Measures the model with the given weights on the node's data."""
NAME = "evaluation"
MOST = 1e12
"""The largest maximum of a metric; the encoding of every value below it succeeds."""


def evaluation_scheme(metric: str, mechanism: OneNumber) -> Scheme:
    """The scheme of one number; a report of one metric is not valid for another.

    >>> scheme = evaluation_scheme("accuracy", OneNumber(epsilon=1.0))
    >>> scheme.bits // 8, scheme.privacy.epsilon
    (17, 1.0)
    """
    return Scheme(name=f"{NAME} of {metric}", dim=1, transforms=(), mechanism=mechanism)


def allowed_scheme(policy: Policy, request: Request) -> tuple[str, Scheme]:
    """The metric that a request asks for and its scheme, made here; raises Refused if it is not allowed."""
    cap, metric = policy.evaluate_epsilon, request.options.get("metric")
    if cap is None:
        raise Refused("an evaluation was asked for, and this node's configuration has no evaluate-epsilon")
    if not request.epsilon <= cap:
        raise Refused(f"epsilon = {request.epsilon!r} is above this node's evaluate-epsilon = {cap!r}")
    if request.by_slot:
        raise Refused(
            "an evaluation by slot: a node that reports once, in a secret order, sends nothing else"
        )
    if request.scheme != NAME or set(request.options) != {"metric"}:
        raise MalformedRequest(f"an evaluation has the scheme {NAME!r} and the option metric")
    if not request.task.bound <= MOST or request.task.clip is not None:
        raise MalformedRequest(f"an evaluation has a bound of at most {MOST:g}, and no clip")
    if not isinstance(metric, str) or not metric.isprintable() or not 1 <= len(metric) <= 100:
        raise MalformedRequest("metric must be 1 to 100 printable characters")
    try:
        scheme = evaluation_scheme(metric, OneNumber(epsilon=request.epsilon))
    except ValueError as error:
        raise Refused(f"the number cannot be made private: {error}") from None
    policy.check(scheme, request)
    return metric, scheme


def within(value: object, maximum: float) -> float:
    """A measured value moved into its range; raises Misfit if it is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise Misfit(f"the metric is {type(value).__name__}, and must be a number that is not NaN")
    return float(min(max(value, 0.0), maximum))


def worst(metric: str, maximum: float) -> float:
    """What a failed evaluation counts as, so that it never makes a model look better: 0, or a loss's maximum.

    >>> worst("accuracy", 1.0), worst("eval_loss", 5.0)
    (0.0, 5.0)
    """
    return maximum if "loss" in metric or "error" in metric else 0.0
