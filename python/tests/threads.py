"""Doing the same in several threads at once."""

from concurrent.futures import ThreadPoolExecutor


def in_threads(work, count):
    """Call ``work(i)`` in a thread for each i below ``count``; what one raises is raised here."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))
