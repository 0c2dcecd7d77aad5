"""HTML reports and tables from stored results. Does not import torch."""
