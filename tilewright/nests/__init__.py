"""Loop nests of users as data: read from Python or from a recorded kernel, recognised as products, scheduled, run.

    source.py, recorded.py      Python's source, or a recorded kernel  →  nest.py: `LoopNest`
    domain.py                   sizes put in: which rounds there are, which elements they access
    schedule.py                 operations on trees that keep what they compute: dependences.py, operations.py,
                                staging.py, counts.py
    tree.py, lower.py           loops and statements as a tree, and the kernel that it is on a CPU or a GPU; terms.py:
                                what statements compute
    run.py                      `tilewright.loops`; execution.py, parallel.py: where loops run that nobody has scheduled
"""
