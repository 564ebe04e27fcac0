"""Private: compiled loops, each with a plain twin in tensors; nothing here checks its input."""
