"""Loop nests of users as data: read from Python or from a recorded kernel, recognised as products, scheduled, run.

    nest.py, polynomial.py, tree.py     the record: statements with their loops; the same as a tree
    domain.py                           for given sizes: which rounds there are, which elements they access
    reading/        Python's source, or a recorded kernel  →  `LoopNest`
    running/        a tree as a kernel; loops as written on CPUs, GPUs and in the simulator; equality on small arrays
    products/       contractions: recognised, cut into boxes, called as matmul, contract or einsum
    schedules/      operations on trees, dependences, counts
    search/         schedules by rules, ranked, checked, timed and kept
    optimize.py     `tilewright.optimize`: all of it
"""
