"""tilewright in threadpoolctl: `threadpool_info()` lists it, `threadpool_limits(n)` limits it, under user_api "blas".

threadpoolctl finds thread pools by the files of loaded shared libraries. tilewright has none: its code is written and
placed in memory by LLVM. What it is found by is therefore the library that placed it, llvmlite's: its path is what
`filepath` shows. So the entry appears once tilewright has compiled or loaded something, and not before.
The limit that is set applies to the calling thread, as threadpoolctl asks of a controller where possible.

Registered as soon as both modules are imported and tilewright's threads are used or configured; `register()` does it
at once.
"""
from __future__ import annotations

from functools import cache


@cache
def register() -> None:
    """Make tilewright known to threadpoolctl, once."""
    import threadpoolctl

    from tilewright.runtime.cpu import pool

    class Controller(threadpoolctl.LibController):
        user_api = "blas"
        internal_api = "tilewright"
        filename_prefixes = ("libllvmlite",)

        def get_num_threads(self) -> int:
            return pool.get_num_threads()

        def set_num_threads(self, num_threads: int) -> None:
            # threadpoolctl undoes a limit by setting what was there before, which need not stay a limit of this thread
            pool.set_local_limit(None)
            if num_threads != pool.get_num_threads():
                pool.set_local_limit(num_threads)

        def get_version(self) -> str:
            from tilewright import __version__
            return __version__

    threadpoolctl.register(Controller)
