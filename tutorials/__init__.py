"""Tutorials: scripts in cells, which editors open as notebooks; their pages.

``python tutorials/long_tailed.py`` runs one and leaves its figures in the
working folder. ``python -m tutorials`` runs all and writes their pages,
``docs/tutorials/NAME.md``.
"""
