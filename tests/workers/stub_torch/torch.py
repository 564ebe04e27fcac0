"""Stub of torch for worker processes: importing the real one would take seconds in each."""

_threads = 8


def set_num_threads(count):
    global _threads
    _threads = count


def get_num_threads():
    return _threads
