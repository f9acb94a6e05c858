"""A process that checks cases of one fuzzer and says of each that it begins and how it ended: of `driver.run`."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from typing import Any

from tests.fuzz import driver


def main(descriptor: int, task: str) -> None:
    name, seed, start, stop, seconds, most, given = json.loads(task)
    deadline = None if seconds is None else time.monotonic() + seconds

    def say(**what: Any) -> None:
        os.write(descriptor, json.dumps(what).encode() + b"\n")

    fuzzer, failures = driver.find(name), 0
    if fuzzer.memory is not None:
        resource.setrlimit(resource.RLIMIT_AS, (fuzzer.memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
    for number in range(start, stop):
        if failures == most or (deadline is not None and time.monotonic() > deadline):
            say(done=number if failures == most else stop)
            return
        case = driver.draw(fuzzer, seed, number) if given is None else given
        say(begin=number)
        what = driver.failure(fuzzer, case)
        if what is not None:
            failures += 1
            if given is None:
                case = driver.simplified(fuzzer, case)
                what = driver.failure(fuzzer, case) or what
        say(end=number, case=case, what=what)
    say(done=stop)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main(int(sys.argv[1]), sys.argv[2])
