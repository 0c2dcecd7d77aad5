"""Reports and figures from stored results. Nothing is computed here, and torch is never imported."""
