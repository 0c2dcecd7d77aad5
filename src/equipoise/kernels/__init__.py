"""Backends that compute the unreduced losses. ``dispatch`` is the only place that picks one."""

from __future__ import annotations

__all__: list[str] = []
