"""Imports Dask while the garbage collector is on. Its slicing remembers whether that was so when it was imported, and
leaves the collector in that state after each call; tests/conftest.py has it off while tests are collected."""

import gc
from contextlib import suppress

gc.enable()
with suppress(ImportError):
    import dask.array  # noqa: F401
gc.disable()
