"""Something done in a forked child that may crash or hang, and what became of it."""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import traceback
from collections.abc import Callable


def in_child(work: Callable[[], None], limit_s: float) -> None:
    """AssertionError with the child's traceback, or with how it ended, unless `work` returns within the limit."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            faulthandler.enable(writing)
            work()
            status = 0
        except BaseException:
            os.write(writing, traceback.format_exc().encode()[-8000:])
        finally:
            os._exit(status)
    os.close(writing)
    said, hung = b"", False
    try:
        while select.select([reading], [], [], limit_s)[0]:
            chunk = os.read(reading, 1 << 16)
            if not chunk:
                break
            said += chunk
        else:
            hung = True
            os.kill(child, signal.SIGABRT)  # faulthandler shows where
            if select.select([reading], [], [], 10)[0]:
                said += os.read(reading, 1 << 16)
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(reading)
        _, status = os.waitpid(child, 0)
    shown = said.decode(errors="replace")
    if hung:
        raise AssertionError(f"a child did not end in {limit_s:.0f} s\n{shown}")
    if status:
        ended = f"by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"with {os.WEXITSTATUS(status)}"
        raise AssertionError(f"a child ended {ended}\n{shown}")
