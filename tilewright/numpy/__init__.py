"""NumPy's products by tilewright, in programs that know nothing of it: np.matmul and the operator @, np.dot, vdot,
inner, einsum and tensordot, for the calls where tilewright is faster.

    tilewright.numpy.install()                  # until uninstall()
    with tilewright.numpy.installed(): ...      # for a while

The functions stay the objects that they are, so that modules which imported them before are served too. See
docs/numpy.md.
"""
from tilewright.numpy.replaced import (
    Unsupported as Unsupported,
    counts as counts,
    install as install,
    installed as installed,
    is_installed as is_installed,
    uninstall as uninstall,
)
from tilewright.numpy.rules import RULES as RULES, Rule as Rule, Rules as Rules
