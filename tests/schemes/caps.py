"""Shared by the tests of both caps: budgets, and the error at any edge."""

import math

BUDGETS = [(2, 0.5), (3, 5.0), (10, 1.0), (50, 0.1), (200, 60.0), (1000, 400.0)]


def errors_at(epsilon, tail, moment, edges=0.0):
    """E|v / m - u|² at other edges, from the probability and moment of the cap; E|v|² is 1 + g m."""
    mean = math.expm1(epsilon) * moment / (1 + math.expm1(epsilon) * tail)
    return (1 + edges * mean) / mean**2 - 1
