"""Measurements behind the pages in ``docs``: each script takes its data as an argument and records what it found."""
