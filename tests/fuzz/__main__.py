"""`python -m tests.fuzz [--seconds N | --cases N] [--seed S] [--only NAME] [--case REPR]`: random cases, checked.

Ends with a line for each fuzzer, and with status 1 if anything failed. What failed is printed with the command that
checks that case alone. Kernels are kept in TILEWRIGHT_CACHE_DIR, by default a directory for this run.
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
import tempfile

from tests.fuzz import driver


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Random cases, checked.")
    parser.add_argument("--seconds", type=float, default=60, help="for all fuzzers together (default: %(default)s)")
    parser.add_argument("--cases", type=int, help="so many of each fuzzer, however long they take")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other cases (default: %(default)s)")
    parser.add_argument("--only", action="append", choices=driver.NAMES, help="this fuzzer (several times: these)")
    parser.add_argument("--case", type=ast.literal_eval, help="check this one case, as a failure prints it")
    parser.add_argument("--most", type=int, default=10, help="failures of a fuzzer after which it ends (%(default)s)")
    options = parser.parse_args()
    names = options.only or driver.NAMES
    if options.case is not None and len(names) != 1:
        parser.error("--case needs the fuzzer that it is a case of: --only NAME")
    print(f"seed {options.seed}", flush=True)
    shares = {name: driver.find(name).share for name in names}
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="tilewright-fuzz-") as directory:
        os.environ.setdefault("TILEWRIGHT_CACHE_DIR", directory)
        for name in names:
            seconds = options.seconds * shares[name] / sum(shares.values())
            how = {"cases": 1} if options.case is not None else (
                {"seconds": seconds} if options.cases is None else {"cases": options.cases})
            outcomes.append(driver.run(name, options.seed, most=options.most, case=options.case,
                                       tell=lambda found: print(found, flush=True), **how))
            print(outcomes[-1], file=sys.stderr, flush=True)
    print(*outcomes, sep="\n")
    return int(any(outcome.failures for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
