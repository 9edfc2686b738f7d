"""Argument validation: each check returns the value or raises a ValueError with its name and value."""

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]
_FLOAT32 = np.dtype(np.float32)
_WHOLE, _REAL = (int, np.integer), (int, float, np.integer, np.floating)
LARGEST = 1e13  # the largest magnitude of a coordinate


def integer(name: str, value: object, least: int, most: int) -> int:
    """Return a whole number in least..most."""
    if not isinstance(value, _WHOLE) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name} = {value!r} must be a whole number from {least} to {most}")
    return int(value)


def real(name: str, value: object, least: float, most: float, *, open_ends: bool = False) -> float:
    """Return a finite number in [least, most], or in (least, most)."""
    number = _number(value)
    if not (least < number < most if open_ends else least <= number <= most):
        if math.isinf(least) and math.isinf(most):
            raise ValueError(f"{name} = {value!r} must be a finite number")
        between = "strictly between" if open_ends else "from"
        joint = "and" if open_ends else "to"
        raise ValueError(f"{name} = {value!r} must be a number {between} {least:g} {joint} {most:g}")
    return number


def _number(value: object) -> float:
    """Return the value as a float, rounded down; NaN, which fails every comparison, if it is not a finite
    number.

    Rounded down, an epsilon given in a wider type never grows:
    tests/internal/test_checks.py::test_wider_numbers_are_rounded_down.
    """
    if type(value) is float:  # by far the most frequent case, and in every encode
        return value if math.isfinite(value) else math.nan
    if not isinstance(value, _REAL) or isinstance(value, bool):
        return math.nan
    exact = int(value) if isinstance(value, np.integer) else value
    try:
        number = float(exact)
    except OverflowError:
        return math.nan
    if number > exact:
        number = math.nextafter(number, -math.inf)
    return number if math.isfinite(number) else math.nan


def positive(name: str, value: object) -> float:
    """Return a finite number above zero, as a float not above it."""
    number = _number(value)
    if not number > 0:
        raise ValueError(f"{name} = {value!r} must be a finite number above 0")
    return number


def shaped(name: str, value: Any, dim: int) -> Vector:
    """Return a contiguous float32 vector of length dim; float16 and float64 are converted."""
    array = _array(name, value, dim, "f", "be a float vector (x.astype('float32'))")
    if array.dtype != _FLOAT32 or not array.flags.carray:
        with np.errstate(over="ignore"):
            return array.astype(np.float32, order="C")
    return array


def shaped_rows(name: str, value: Any, rows: int, dim: int) -> Vector:
    """Return a contiguous float32 matrix of this shape; float16 and float64 are converted."""
    array = np.asarray(value)
    if array.dtype.kind != "f" or array.shape != (rows, dim):
        raise ValueError(
            f"{name} is {array.dtype} of shape {array.shape}; it must be floats of ({rows}, {dim})"
        )
    return shaped(name, array.reshape(-1), array.size).reshape(rows, dim)


def vector(name: str, value: Any, dim: int) -> Vector:
    """Return a float32 vector of length dim with coordinates within ±1e13."""
    from sqsgd._internal.kernels.rotation import within

    result = shaped(name, value, dim)
    if not within(result, LARGEST):
        at = int(np.flatnonzero(~(np.abs(result) <= LARGEST))[0])
        raise ValueError(f"{name}[{at}] = {np.asarray(value)[at]} must be finite and within ±{LARGEST:g}")
    return result


def finite_size(name: str, size: float) -> float:
    """Return a vector's norm or largest magnitude, which is finite only if all its coordinates are."""
    if not size < math.inf:
        raise ValueError(f"{name} contains NaN or infinity")
    return size


def meant(name: object, known: Iterable[str]) -> str:
    """ "; did you mean ...?" if a known name is close, ignoring case; else an empty string."""
    close = difflib.get_close_matches(str(name).lower(), list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def fields(values: Mapping[str, Any], kinds: Mapping[str, type], where: str) -> dict[str, Any]:
    """Keys and values of a file, a whole number as a float where one is expected.

    ValueError names the file (``where``) and an unknown key, or a value that is not of its kind.
    """
    found = {}
    for name, value in values.items():
        if name not in kinds:
            hint = meant(name, kinds) or f" (known: {', '.join(kinds)})"
            raise ValueError(f"{where}: unknown key {name!r} = {value!r}{hint}")
        kind = kinds[name]
        found[name] = float(value) if kind is float and type(value) is int else value
        if not isinstance(found[name], kind) or (isinstance(value, bool) and kind is not bool):
            text = f", such as {str(value)!r}" if kind is str and isinstance(value, int) else ""
            raise ValueError(f"{where}: {name} = {value!r} must be of type {kind.__name__}{text}")
    return found


def codes(name: str, value: Any, dim: int, levels: int) -> npt.NDArray[np.uint8]:
    """Return a vector of dim whole numbers in 0..levels-1, as uint8."""
    array = _array(name, value, dim, "iu", "contain whole numbers")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= levels:
        wrong = low if low < 0 else high
        raise ValueError(f"{name} contains {wrong}; every code must be from 0 to {levels - 1}")
    return array.astype(np.uint8, order="C")


def _array(name: str, value: Any, dim: int, kinds: str, wanted: str) -> npt.NDArray[Any]:
    """Return the value as an array of length dim whose dtype is of one of NumPy's ``kinds``."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} must be a vector: {error}") from None
    if array.dtype.kind not in kinds:
        raise ValueError(f"{name} has dtype {array.dtype}; it must {wanted}")
    if array.shape != (dim,):
        raise ValueError(f"{name} has shape {array.shape}; it must be ({dim},)")
    return array
