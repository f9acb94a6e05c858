"""The floor above the library: measuring, benchmarks, tuning, explanations, self-tests, the ladder, the command line.

Nothing in the library imports a module of this folder; public functions that live here (`tune`, `explain`, `build`) are
looked up when they are first used.
"""
