"""A plugin of pytest that makes tilewright's functions those that opt_einsum calls for NumPy's arrays, which its tests
compare with NumPy's."""

from opt_einsum.backends import dispatch

import tilewright as tw

for name in ("einsum", "tensordot"):
    dispatch._cached_funcs[name, "numpy"] = getattr(tw, name)
