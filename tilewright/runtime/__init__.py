"""Running compiled kernels: the CPU engine, its threads, and the CPython builtin in front."""
