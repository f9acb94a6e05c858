"""tilewright in threadpoolctl: `threadpool_info()` lists it, `threadpool_limits(n)` limits it, under user_api "blas".

threadpoolctl finds thread pools by the files of loaded shared libraries. tilewright has none, since its code is written
at run time. It is found by NumPy's core instead, which is loaded wherever tilewright multiplies: `filepath` is that of
NumPy's core.
The limit that is set applies to the calling thread, as threadpoolctl asks of a controller where possible.

Registered as soon as both modules are imported and tilewright's threads are used or configured; `register()` does it
at once.
"""
from __future__ import annotations

from functools import cache


@cache
def register() -> None:
    """Make tilewright known to threadpoolctl, once."""
    import numpy as np  # noqa: F401    its core is the library that is found
    import threadpoolctl

    from tilewright.runtime.cpu import pool

    class Controller(threadpoolctl.LibController):
        user_api = "blas"
        internal_api = "tilewright"
        filename_prefixes = ("_multiarray_umath",)

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
