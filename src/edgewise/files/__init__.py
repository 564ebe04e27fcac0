"""File input and output: arrays, tables, and tensors with metadata. Reads use no pickle and writes are atomic."""
