"""Training: a run on imbalanced data, whose results are written to a folder."""
