"""Comparisons: many runs on one data set, with confidence intervals and tests of their differences."""
