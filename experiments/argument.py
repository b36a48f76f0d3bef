"""Kinds of command-line arguments, for argparse's ``type``: each refuses what cannot be meant."""

import math
from argparse import ArgumentTypeError


def positive(text: str) -> float:
    """A number above 0."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise ArgumentTypeError(f"{text}: give a number above 0")
    return value


def mean_count(text: str) -> float:
    """A number of 1 or more, as the mean of counts that are at least 1."""
    if (value := positive(text)) < 1:
        raise ArgumentTypeError(f"{text}: give a number, 1 or more")
    return value


def count(text: str) -> int:
    """A whole number above 0."""
    value = _number(text)
    if value < 1 or value != int(value):
        raise ArgumentTypeError(f"{text}: give a whole number, 1 or more")
    return int(value)


def seed(text: str) -> int:
    """A whole number, 0 or more."""
    value = _number(text)
    if value < 0 or value != int(value):
        raise ArgumentTypeError(f"{text}: give a whole number, 0 or more")
    return int(value)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ArgumentTypeError(f"{text!r} is not a number")
    return value
