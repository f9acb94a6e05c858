"""How fast, compared with whom: the rules of measurement, the peers, the suites, and what is shown of them.

    shapes.py     WHAT is timed: suites of cases (square, awkward, layouts, skinny, ladder, overhead)
    operands.py   the matrices of a case: random, in the asked layout, in several copies when the cache must be cold
    peers.py      AGAINST WHOM: NumPy, OpenBLAS, MKL, BLIS, torch; thunk.py calls them without Python's overhead
    check.py      an answer is compared with float64 before its speed means anything
    measure.py    HOW: interleaved turns, warm-up, medians, ratios round by round; quiet.py keeps the others still
    child.py      one process per thread count and ISA does the timing; session.py starts it and listens
    results.py    the JSON; report.py the table, plot.py the picture, readme.py the README's figures
    formats.py    every number format: formats_products.py (what), _data, _error, _peers and _blas, _child, _results,
                  _report, _plot, each with the part of the file without that name
    ladder.py, startup.py, tiles.py   the studies: the teaching steps, import and first call, register tiles

Nothing is imported here, so that `tilewright --help` stays quick.  The rules and their reasons: docs/benchmarking.md.
"""
