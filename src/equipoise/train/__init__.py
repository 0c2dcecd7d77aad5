"""Training: one run on anybody's imbalanced data, left behind as a folder."""
