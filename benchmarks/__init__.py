"""Benchmarks: ``python -m benchmarks`` lists them, ``python -m benchmarks losses --device cpu`` runs one."""

from __future__ import annotations

import os

# The profiler, which counts memory, writes a line to stderr whenever it starts; torch reads this at import.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
