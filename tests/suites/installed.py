"""A plugin of pytest that runs a package's own tests with tilewright.numpy installed. TILEWRIGHT_TAKES: `rules`, the
default, for the calls that the rules say; `all` for all that can be; `none` for nothing installed."""

import os

import tilewright.numpy
from tilewright.numpy import RULES, Rule, Rules

TAKES = os.environ.get("TILEWRIGHT_TAKES", "rules")

if TAKES != "none":
    every = Rule(1)
    tilewright.numpy.install(rules=None if TAKES == "rules" else dict.fromkeys(RULES, Rules(every, every, every)))
