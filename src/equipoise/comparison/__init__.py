"""Comparisons: many runs on one data set, and what can be said of the differences."""
