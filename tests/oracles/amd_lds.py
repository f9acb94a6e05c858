"""Which words of LDS a workgroup's waves have written and read, and whether each could be sure of the others.

Waves meet at barriers and nowhere else. What a wave has written is there for the others from the next barrier on after
it has waited for that itself; and what it has read may be written by others from the next barrier on after it has the
numbers. Of its own accesses those by ds_read and ds_write come in order; loads straight into LDS go another way, and
have to be waited for.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]      # words of LDS
NEVER, UNDER_WAY = -1, 1 << 30  # when an access was done: the number of barriers before that, or these


@dataclass(eq=False)
class Access:
    """One that is under way: ds_read, ds_write, a load into registers or straight into LDS, a store."""
    text: str
    number: int
    registers: tuple[str, ...] = ()     # that it fills
    reads: list[Places] | None = None   # of LDS, by waves
    writes: Places | None = None
    scalar: bool = False                # these come back in any order


class Lds:
    """So many words, of so many waves."""

    def __init__(self, words: int, waves: int) -> None:
        self.words, self.waves, self.barriers = words, waves, 0
        self.writer, self.straight = np.full(words, NEVER), np.zeros(words, bool)
        self.written, self.write = np.full(words, NEVER), np.full(words, NEVER)     # when, and by which access
        self.read, self.reader = (np.full((waves, words), NEVER) for _ in range(2))
        self.data = np.full(words, NEVER)                       # what is known of it

    def reads(self, access: Access, words: Places, on: NDArray[np.bool_]) -> list[str]:
        """An access reads these words, [waves, lanes, words of a lane], where lanes are on. What is wrong with it."""
        wrong: dict[str, None] = {}
        access.reads = [at[lanes].ravel() for at, lanes in zip(words, on, strict=True)]
        for wave, used in enumerate(access.reads):
            if (self.writer[used] == NEVER).any():
                wrong["it reads LDS that nobody wrote"] = None
            there = np.where(self.writer[used] == wave, ~self.straight[used] | (self.written[used] <= self.barriers),
                             self.written[used] < self.barriers)
            if not there.all():
                wrong["it reads LDS that may not have been written yet"] = None
            self.read[wave, used], self.reader[wave, used] = UNDER_WAY, access.number
        return list(wrong)

    def writes(self, access: Access, words: Places, on: NDArray[np.bool_], straight: bool) -> list[str]:
        """The same of one that writes them; `straight`: from global memory."""
        wrong: dict[str, None] = {}
        for wave, (at, lanes) in enumerate(zip(words, on, strict=True)):
            used = at[lanes].ravel()
            for other in range(self.waves):
                read = self.read[other, used]
                late = straight & (read == UNDER_WAY) if other == wave else read >= self.barriers
                if late.any():
                    wrong["it writes LDS that somebody may not have read yet"] = None
            own = (self.writer[used] == wave) & ~self.straight[used] & (not straight)
            if (~own & (self.written[used] >= np.where(self.writer[used] == wave, UNDER_WAY, self.barriers))).any():
                wrong["it writes LDS that another may be writing"] = None
            self.writer[used], self.straight[used] = wave, straight
            self.written[used], self.write[used] = UNDER_WAY, access.number
        access.writes = words[on].ravel()
        self.data[access.writes] = NEVER
        return list(wrong)

    def done(self, access: Access) -> None:
        """Its wave has waited for it."""
        if access.writes is not None:
            self.written[access.writes[self.write[access.writes] == access.number]] = self.barriers
        for wave, words in enumerate(access.reads or ()):
            self.read[wave, words[self.reader[wave, words] == access.number]] = self.barriers
