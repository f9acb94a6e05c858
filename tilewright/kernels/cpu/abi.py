"""Memory that emitted code and the runtime both read: the builtin's context, records of calls, and NumPy's arrays.

Offsets in bytes. Nothing here needs the emission layer: a process whose kernels are all cached never loads it.
"""
from tilewright.kernels.cpu.jobs import EACH, MOST_EACH

# The context: 8 bytes each. WATCHING is the Python function for a call whose a is an ndarray, PYTHON for all others.
# SMALL is (small_gemm, its own context) for f32, then for f64. NATIVE has rows of three: a value of algorithm=, and up
# to which m*n*k it is the native product, for f32 and for f64; the first row is for a call without that keyword. TABLE
# has the addresses of records (0: there is none yet), POOL that of the pool. OUT, ALGORITHM, EPILOGUE and OPERANDS are
# names of keywords; FUNCTION, FLOAT and DICT Python's types, and NONE its None. NEW and SCALAR are NumPy's functions
# that make arrays, and scalars. TENSOR is torch's type, 0 until tensors are repeated; READ torch's function that
# describes one, MODES its Python function that says how many modes see operations; TRUE and ZERO are Python's.
(PYTHON, WATCHING, VECTORCALL, NDARRAY, OUT, NEW, LARGEST, RELEASE_ABOVE, ALGORITHM, TABLE, POOL, RUN_PARTS, RUN_TEAM,
 SPACE_TAKEN, RUNNING, EPILOGUE, OPERANDS, FUNCTION, FLOAT, DICT, NONE, SCALAR, TENSOR, READ, MODES, TRUE,
 ZERO) = range(0, 27*8, 8)
SMALL = 27*8
NATIVE, NATIVE_ROWS = SMALL + 32, 6
CONTEXT_SIZE = NATIVE + 24*NATIVE_ROWS

# A record of a call that can be repeated (repeat.py): numbers of 8 bytes, then KEY words of its key, then its job, then
# a ROW for each operand of an epilogue, then a NAMED for each name that it looks up.
RECORD = (
    "words",                                # of the key
    "function", "parts", "threads", "wake",  # what to run; parts are 1 for the caller alone
    "team",                                 # 1: the parts meet at barriers
    "long",                                 # 1: release the GIL
    "symmetric",                            # 1: Python multiplies half of it where a and b are in the same memory
    "spaced",                               # 1: panels are in the one workspace of all records
    "barriers", "zeroed",                   # its barriers, and how many numbers of them begin at 0
    "fields", "at_a", "at_b", "at_c",       # of the job: how many, and where the addresses stand
    "special",                              # the field that is not 0 if C means nothing; `fields` if there is none
    "size_a", "size_b", "size_c",           # bytes of an element
    "type", "descr", "axes", "dim_0", "dim_1", "dim_2",     # the result's dtype, by NumPy's number and its address; its
                                            # sizes; without axes it is a scalar, unless `out` is given
    "rows", "at_table",                     # operands of an epilogue; the field with their table's address, or `fields`
    "named",                                # names: globals, builtins, attributes of modules
    "check", "new", "made",                 # of tensors: a function that says whether they are like those of the
                                            # record, one that makes the result, and its arguments; else 0
)
ROW = ("which", "size", "row", "column", "product")     # of `operands`, in their order; bytes of a number; jobs.OPERAND
NAMED = ("space", "name", "value")          # addresses of a dict, a key and its value; 0: there must be no such key
MOST_FIELDS, MOST_KEYWORDS, MOST_OPERANDS = len(EACH) + MOST_EACH, 6, 4
MOST_VALUES = 8             # of a function's closure, and of its defaults
IS_FLOAT = 1                # a word in place of an object's address
KEY = 8 + 8 + 2*MOST_KEYWORDS + (3 + 4*MOST_VALUES) + (1 + 9*MOST_OPERANDS) + 9 + 2
SLOTS = 4096                # records that a table has room for, a power of two
FACTOR, SHIFT = 0x2545F4914F6CDD1D, 40      # of the hash: (hash ^ word) * FACTOR for each word; a slot from bit SHIFT

# PyArrayObject, after the object's header; and PyArray_Descr
DATA, ND, DIMS, STRIDES, BASE, DESCR, FLAGS = 0, 8, 16, 24, 32, 40, 48
KIND, BYTEORDER, TYPE_NUM = 8, 10, 12           # KIND is one word that holds the two others

# DLTensor of DLPack. The type is one word: its code, and from bit 8 its bits, and from bit 16 its lanes
DL_DATA, DL_DEVICE, DL_AXES, DL_TYPE, DL_SIZES, DL_STRIDES, DL_OFFSET, DL_SIZE = 0, 8, 16, 20, 24, 32, 40, 48
ON_CPU = 1
