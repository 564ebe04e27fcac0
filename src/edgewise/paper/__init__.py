"""The paper: what was published, how we compare with it, and its tables, figures and page."""
