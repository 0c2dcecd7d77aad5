"""What turns README, docs, examples and docstrings into the site; ``mkdocs.yml`` names it."""
