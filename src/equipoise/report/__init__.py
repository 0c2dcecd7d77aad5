"""Pages and figures from results that are plain data. Nothing is computed here, and torch is never imported."""
