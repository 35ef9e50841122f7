"""Inline functions of generated Triton kernels. A module contains those that its kernel calls, and their callees."""

from __future__ import annotations

from collections.abc import Iterable

from smelt.abi.random_source import RANDOM_FUNCTIONS
from smelt.base.text import with_needs

FUNCTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "m_sqrt": (
        """\
def m_sqrt(x):
    return tl.sqrt_rn(x) if x.dtype == tl.float32 else tl.sqrt(x)""",
        (),
    ),
    "m_div": (
        """\
def m_div(a, b):
    return tl.div_rn(a, b) if (a + b).dtype == tl.float32 else a / b""",
        (),
    ),
    "m_div_by": (
        """\
def m_div_by(a, minus_b, y):
    # y is 1 / b. What a quotient leaves over corrects it: once to the last bit or its neighbour, then to the number
    # that a division rounds to (P. Markstein, 1990). Nothing is left over by 0, NaN by what is not finite.
    q = a * y
    r = libdevice.fma(q, minus_b, a)
    s = libdevice.fma(r, y, q)
    s = libdevice.fma(libdevice.fma(s, minus_b, a), y, s)
    return tl.where((r != 0) & (r - r == 0), s, q)""",
        (),
    ),
    "m_rsqrt": (
        """\
def m_rsqrt(x):
    # the instruction takes subnormal numbers for 0
    if x.dtype == tl.float32:
        small = tl.abs(x) < 1.1754943508222875e-38
        y = tl.rsqrt(tl.where(small, x * 16777216.0, x)) * tl.where(small, 4096.0, 1.0)
    else:
        y = tl.rsqrt(x)
    return y""",
        (),
    ),
    "m_sigmoid": (
        """\
def m_sigmoid(x):
    if x.dtype == tl.float64:
        y = 1.0 / (1.0 + tl.exp(-x))
    else:
        # a subnormal power is nothing beside 1, and the quotient is one instruction that takes subnormal results for 0
        one = tl.full([], 1.0, tl.float32)
        y = libdevice.fast_dividef(one, one + libdevice.exp(x * -1.0))
    return y""",
        (),
    ),
    "m_erf": (
        """\
def m_erf(x):
    if x.dtype == tl.float64:
        y = tl.erf(x)
    else:
        # Least maximal errors: of erf(x) / x - 1 over x * x up to 0.75, of 1 - erf(x) from there to 4.05, where erf is
        # 1 to the last bit: of what `gelu` leaves below -4 (1 + erf) the last bit of erf is all. Two short polynomials
        # are fewer instructions than one whose coefficients are chosen.
        u = x * x
        q = tl.fma(u, 0.004158836789429188, -0.02636026404798031)
        q = tl.fma(tl.fma(q, u, 0.11273736506700516), u, -0.3761192858219147)
        near = tl.fma(x, tl.fma(q, u, 0.12837909162044525), x)
        a = tl.abs(x)
        p = tl.fma(tl.fma(a, -2.7374260753276758e-05, 0.0005905035650357604), a, -0.005839466117322445)
        p = tl.fma(tl.fma(p, a, 0.03576997295022011), a, -0.15549486875534058)
        p = tl.fma(tl.fma(p, a, -0.9143698811531067), a, -1.629235029220581)
        e = libdevice.exp2(tl.fma(p, a, 0.00018942936731036752))
        y = tl.where(a >= 0.75, libdevice.copysign(1.0 - e, x), near)
    return y""",
        (),
    ),
    "online_step": (
        """\
def online_step(m, s, x):
    # a word of x is a thread's: its maximum is one instruction an element, and sums are scaled once a word
    words = tl.reshape(x, [m.shape[0], m.shape[1], x.shape[1] // m.shape[1]])
    top = m_maximum(m, tl.reduce(words, 2, m_maximum))
    powers = libdevice.exp2((words - tl.expand_dims(top, 2)) * 1.4426950408889634)
    return top, s * libdevice.exp2((m - top) * 1.4426950408889634) + tl.sum(powers, 2)""",
        ("m_maximum",),
    ),
    "online_end": (
        """\
def online_end(m, s, axis: tl.constexpr):
    top = tl.expand_dims(tl.reduce(m, axis, m_maximum), axis)
    total = tl.expand_dims(tl.sum(s * libdevice.exp2((m - top) * 1.4426950408889634), axis), axis)
    # nothing was added where all is -inf, of which the distance to the maximum is NaN
    return tl.where(total == 0, float("-inf"), top), tl.where(total == 0, float("nan"), total)""",
        ("m_maximum",),
    ),
    "m_maximum": (
        "def m_maximum(a, b):\n    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)",
        (),
    ),
    "m_minimum": (
        "def m_minimum(a, b):\n    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)",
        (),
    ),
    "m_sign": (
        "def m_sign(x):\n    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)",
        (),
    ),
    "m_sign_int": (
        "def m_sign_int(x):\n    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)",
        (),
    ),
    "m_signbit": (
        """\
def m_signbit(x):
    return (x.to(tl.int64, bitcast=True) if x.dtype == tl.float64 else x.to(tl.int32, bitcast=True)) < 0""",
        (),
    ),
    "m_remainder": (
        """\
def m_remainder(a, b):
    r = libdevice.fmod(a, b)
    return tl.where((r != 0) & ((b < 0) != (r < 0)), r + b, r)""",
        (),
    ),
    "m_trunc_div": (
        "def m_trunc_div(a, b):\n    return libdevice.trunc(m_div(a, b))",
        ("m_div",),
    ),
    "m_floor_div": (
        """\
def m_floor_div(a, b):
    mod = libdevice.fmod(a, b)
    div = m_div(a - mod, b)
    div = tl.where((mod != 0) & ((b < 0) != (mod < 0)), div - 1.0, div)
    whole = tl.floor(div)
    whole = tl.where(div - whole > 0.5, whole + 1.0, whole)
    whole = tl.where(div == 0, libdevice.copysign(div * 0.0, m_div(a, b)), whole)
    return tl.where(b == 0, m_div(a, b), whole)""",
        ("m_div",),
    ),
    "m_trunc_div_int": (
        """\
def m_trunc_div_int(a, b):
    safe = tl.where((b == 0) | (b == -1), 1, b)
    return tl.where(b == -1, -a, tl.where(b == 0, 0, a // safe))""",
        (),
    ),
    "m_fmod_int": (
        """\
def m_fmod_int(a, b):
    safe = tl.where((b == 0) | (b == -1), 1, b)
    return a % safe""",
        (),
    ),
    "m_remainder_int": (
        """\
def m_remainder_int(a, b):
    r = m_fmod_int(a, b)
    return tl.where((r != 0) & ((b < 0) != (r < 0)), r + b, r)""",
        ("m_fmod_int",),
    ),
    "m_floor_div_int": (
        """\
def m_floor_div_int(a, b):
    q = m_trunc_div_int(a, b)
    r = m_fmod_int(a, b)
    return tl.where((r != 0) & ((b < 0) != (r < 0)), q - 1, q)""",
        ("m_trunc_div_int", "m_fmod_int"),
    ),
    "m_divisor": (
        """\
def m_divisor(b):
    return (
        tl.inline_asm_elementwise("mov.b64 $0, $1;", "=l,l", [b], dtype=tl.int64, is_pure=True, pack=1)
        if b.dtype == tl.int64
        else tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [b], dtype=tl.int32, is_pure=True, pack=1)
    )""",
        (),
    ),
    "m_over_zero": (
        """\
def m_over_zero(a, b, value):
    low, high = tl.full([], 4294967295, tl.int64), tl.full([], -1, tl.int64)
    return tl.where(b == 0, tl.where((a >> 32) == 0, low, high), value) if a.dtype == tl.int64 else value""",
        (),
    ),
    "m_trunc_div_any": (
        "def m_trunc_div_any(a, b):\n    return m_over_zero(a, b, a // m_divisor(b))",
        ("m_divisor", "m_over_zero"),
    ),
    "m_fmod_any": (
        "def m_fmod_any(a, b):\n    return m_over_zero(a, b, a % m_divisor(b))",
        ("m_divisor", "m_over_zero"),
    ),
    "m_remainder_any": (
        """\
def m_remainder_any(a, b):
    r = m_fmod_any(a, b)
    return tl.where((r != 0) & ((b < 0) != (r < 0)), r + b, r)""",
        ("m_fmod_any",),
    ),
    "m_floor_div_any": (
        """\
def m_floor_div_any(a, b):
    return m_trunc_div_any(a, b) - (((a < 0) != (b < 0)) & (m_fmod_any(a, b) != 0)).to(a.dtype)""",
        ("m_trunc_div_any", "m_fmod_any"),
    ),
    "m_refuse": (
        '''\
def m_refuse(words, wrong, number: tl.constexpr, value, size):
    which, size = tl.full([], number, tl.int64), tl.full([], size, tl.int64)
    tl.inline_asm_elementwise(
        """{
        .reg .pred wrong, any, timed;
        setp.ne.s32 wrong, $2, 0;
        vote.sync.any.pred any, wrong, 0xffffffff;
        @!any bra.uni GO_ON;
        setp.eq.s64 timed, $1, 0;
        @timed bra.uni GO_ON;
        @wrong st.volatile.global.v2.s64 [$1], {$3, $4};
        @wrong st.volatile.global.s64 [$1 + 16], $5;
        fence.sc.sys;
        trap;
    GO_ON:
        mov.b32 $0, 0;
        }""",
        "=r,l,r,l,l,l", [words, wrong.to(tl.int32), which, value, size], dtype=tl.int32, is_pure=False, pack=1
    )''',
        (),
    ),
    "m_pow_int": (
        """\
def m_pow_int(a, b):
    x = a.to(tl.int64) + (b * 0).to(tl.int64)
    n = b.to(tl.int64) + x * 0
    y = x * 0 + 1
    odd = (n & 1) != 0
    for _ in range(63):
        y = tl.where((n > 0) & ((n & 1) != 0), y * x, y)
        x = x * x
        n = n >> 1
    inverse = tl.where(a == 1, 1, tl.where(a == -1, tl.where(odd, -1, 1), 0))
    return tl.where(b < 0, inverse, y).to(a.dtype)""",
        (),
    ),
    "m_shift_left": (
        """\
def m_shift_left(a, b, bits: tl.constexpr):
    inside = (b >= 0) & (b < bits)
    return tl.where(inside, a << tl.where(inside, b, 0), 0)""",
        (),
    ),
    "m_shift_right": (
        """\
def m_shift_right(a, b, bits: tl.constexpr):
    inside = (b >= 0) & (b < bits)
    return tl.where(inside, a >> tl.where(inside, b, 0), tl.where(a < 0, -1, 0))""",
        (),
    ),
    "m_digamma": (
        """\
def m_digamma(x):
    pi: tl.constexpr = 3.14159265358979323846  # without the annotation it would be of float32
    a = x.to(tl.float64)
    whole = libdevice.trunc(a)
    negative = a < 0
    mirrored = -pi / libdevice.tan(pi * (a - whole))
    y = tl.where(negative, mirrored, 0.0)
    z = tl.where(negative, 1.0 - a, a)
    for _ in range(10):
        y = tl.where(z < 10.0, y - 1.0 / z, y)
        z = tl.where(z < 10.0, z + 1.0, z)
    w = 1.0 / (z * z)
    s = 1.0 / 12 - w * (1.0 / 120 - w * (1.0 / 252 - w * (1.0 / 240 - w * (1.0 / 132 - w * (691.0 / 32760 - w / 12)))))
    y = y + tl.log(z) - 0.5 / z - w * s
    y = tl.where(negative & (a == whole), float("nan"), y)
    y = tl.where(a == 0, libdevice.copysign(a * 0 + float("inf"), a * -1.0), y)
    return y.to(x.dtype)""",
        (),
    ),
    **RANDOM_FUNCTIONS,
    "best_max": (
        """\
def best_max(a, i, b, j):
    better = (a > b) | ((a != a) & (b == b))
    equal = (a == b) | ((a != a) & (b != b))
    first = better | (equal & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)""",
        (),
    ),
    "best_min": (
        """\
def best_min(a, i, b, j):
    better = (a < b) | ((a != a) & (b == b))
    equal = (a == b) | ((a != a) & (b != b))
    first = better | (equal & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)""",
        (),
    ),
    "times": ("def times(a, b):\n    return a * b", ()),
    "grouped_blocks": (
        """\
def grouped_blocks(GROUP: tl.constexpr):
    rows, columns = tl.num_programs(0), tl.num_programs(1)
    place = tl.program_id(0) + tl.program_id(1) * rows
    first = place // (GROUP * columns) * GROUP
    height = tl.minimum(rows - first, GROUP)
    inside = place % (GROUP * columns)
    return first + inside % height, inside // height""",
        (),
    ),
}
"""The text of each function and the functions that it calls.

`grouped_blocks`: the block of rows and the block of columns of a product that a program computes; programs that run
at the same time share rows or columns, which stay in the second-level cache.

`m_divisor`: an integer divisor opaque to the compiler. A division by 0 then gives the same result as that instruction
in eager's kernels; LLVM would otherwise conclude from the division that the divisor is not 0. For 64 bits compilers use
different routines, so `m_over_zero` gives eager's result.

`m_refuse`: a kernel with a failed check writes the reason to host memory, which outlives the context, and traps. A
check that succeeds costs a vote in each warp and a uniform branch, because shuffles are slow after divergent branches.
Without such memory the kernel is being timed, possibly on arbitrary values, and continues.

Random bits equal those of smelt.prims.random_bits.
"""

PRELUDE = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice
"""


def module_head(used: Iterable[str]) -> str:
    """Returns imports and the named functions, each after the functions it needs."""
    return "\n\n".join([PRELUDE, *(f"@triton.jit\n{text}\n" for text in with_needs(used, FUNCTIONS))])
