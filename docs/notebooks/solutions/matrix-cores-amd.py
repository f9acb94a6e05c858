# Solutions of matrix-cores-amd.ipynb, which the tests use. Each part is the cell of the exercise, without its last line.

# %% amd.decode
def decode(byte):
    if byte == 0x80:
        return float("nan")
    sign, exponent, mantissa = byte >> 7, byte >> 3 & 15, byte & 7
    value = 2.0**(exponent - 8) * (1 + mantissa / 8) if exponent else 2.0**-7 * mantissa / 8
    return -value if sign else value

# %% amd.peak
def peak(m, n, k, cycles, cores, mhz):
    return 2 * m * n * k * cores * mhz * 1e6 / cycles / 1e12

# %% amd.holders
# of A four neighbours along k in a lane, of D four rows of a column
def holder_of_a(i, k):
    return k // 4 * 16 + i, k % 4


def holder_of_d(i, j):
    return i // 4 * 16 + j, i % 4

# %% amd.loop
def emit_long():
    k = Kernel("long", threads=64, warp=64, depth=i32, a=ptr(f16), b=ptr(f16), c=ptr(f32))
    depth, a, b, c = k.args
    a, b, c = a.view(depth, 1), b.view(16, 1), c.view(16, 1)
    lane = k.thread[0]
    acc = k.variable(ATOM.c.type, 0)
    with k.loop(depth, step=16) as p:
        row, column = ATOM.a(lane, 0)
        a_reg = k.load(a.at(row, p + column), vec(f16, 4))
        places = [ATOM.b(lane, e) for e in range(4)]
        b_reg = k.pack(*(b[p + row, column] for row, column in places))
        (d_reg,) = k.mma(ATOM, [a_reg], [b_reg], [acc.get()])
        acc.set(d_reg)
    d_reg = acc.get()
    for e in range(4):
        c[ATOM.c(lane, e)] = d_reg[e]
    return k.function

# %% amd.quantise
def quantise(x):
    largest = np.abs(x).max()
    if largest == 0:
        return 0, np.zeros(32)
    exponent = int(np.frexp(largest)[1]) - 1            # floor(log2(largest))
    scale = 2.0**(exponent - 2)
    numbers = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])    # those at even places have a last bit of 0
    distances = np.abs(np.minimum(np.abs(x) / scale, 6)[:, None] - numbers)
    nearest = [min(range(8), key=lambda place: (row[place], place % 2)) for row in distances]
    return exponent - 2 + 127, np.copysign(numbers[nearest], x)

# %% amd.scales
# 8 bits: runs of 16 take turns between two lanes. 4 bits: runs of 32. The scale: lane i of the first block, i + 32.
def lanes_of(i, k, bits):
    run = 16 if bits == 8 else 32
    return i + 32 * (k // run % 2), i + 32 * (k // 32)
