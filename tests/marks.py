"""Marks of single parameters."""

import pytest


def slow(*values):
    """Parameters that `make test` leaves out: others stand for them there."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]
