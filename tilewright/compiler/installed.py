"""Where installed distributions are: wheels bring programs and libraries, which are looked for there alone. What Python
imports from besides, the working directory among it in a prompt and under `python -m`, is anybody's.
"""
from __future__ import annotations

import os
import site
import sys
import sysconfig
from pathlib import Path

NAMES = "site-packages", "dist-packages"


def folders() -> list[Path]:
    """The folders of installed distributions, in the order in which Python imports from them."""
    paths = sysconfig.get_paths()
    own = {paths["purelib"], paths["platlib"], *site.getsitepackages()}
    return [Path(path) for path in dict.fromkeys([paths["purelib"], paths["platlib"], *sys.path])
            if os.path.isabs(path) and (path in own or Path(path).name in NAMES)]
