"""Reproduction of the paper: published numbers, comparison, tables, figures, HTML page, and the synthetic study."""
