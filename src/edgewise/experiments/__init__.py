"""The paper as data: what it published, and what we run to compare."""
