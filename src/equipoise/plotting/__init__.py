"""Figures of losses, evaluations and comparisons, in one theme."""
