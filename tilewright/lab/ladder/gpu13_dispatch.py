"""GPU step 13, dispatch: which of the last three kernels multiplies these matrices. The article's last line.

Large tiles need a large C: 128 x 256 of it per CTA leave a device with idle multiprocessors until there are a few
CTAs for each. The article changes over at m = n = 2500, measured on one chip of 82 multiprocessors.
"""
from tilewright.lab.ladder.gpu11_texture import aligned

LARGE = 2500 * 2500             # elements of C from which on the 128 x 256 tile is used


def choose(target, m, n, k, a, lda, b, ldb):
    """The name of the step for operands at these addresses: "async", "texture", or "stored", which takes everything."""
    if m * n >= LARGE and "cp.async" in target.instructions:
        return "async"
    return "texture" if aligned(m, n, k, a, lda, b, ldb) else "stored"
