"""Files: arrays, tables and tensors with metadata, read without pickle and written whole or not at all."""
