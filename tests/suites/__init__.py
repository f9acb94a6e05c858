"""The installed packages' own tests with our functions in place of theirs: `python -m tests.suites`."""
