"""A helper of emitters in a file of its own: debug lines must name it."""

from __future__ import annotations


def doubled(x):
    # the next line is line 8
    return x * 2.0
