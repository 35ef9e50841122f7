"""C text of the inline functions that generated kernels call: branch-free, so that compilers vectorise loops over them.

The polynomials are minimax fits made for this project (Remez, 40 digits) on the reduced ranges given in the comments;
float32 results are within 2 ulp (tanh, log1p: 3) of the true value; NaN and infinities follow IEEE 754. float64 uses
libm. A unit contains only the functions that its kernels use (`header`).
"""

from __future__ import annotations

from collections.abc import Iterable

from smelt.base.text import with_needs

PRELUDE = """\
#include <stdint.h>
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
extern "C" {
#define M(name) double name(double) noexcept; float name##f(float) noexcept;
M(acos) M(acosh) M(asin) M(asinh) M(atan) M(atanh) M(ceil) M(cos) M(cosh) M(erf) M(erfc) M(exp) M(exp2) M(expm1) M(fabs)
M(floor) M(lgamma) M(log) M(log10) M(log1p) M(log2) M(rint) M(sin) M(sinh) M(sqrt) M(tan) M(tanh) M(trunc)
#undef M
#define M(name) double name(double, double) noexcept; float name##f(float, float) noexcept;
M(atan2) M(copysign) M(fmod) M(hypot) M(nextafter) M(pow)
double modf(double, double *) noexcept;
#undef M
}
#define INLINE static inline __attribute__((always_inline))
INLINE float as_float(uint32_t u) { return __builtin_bit_cast(float, u); }
INLINE uint32_t as_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
#if defined(__FP_FAST_FMAF) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
INLINE float FMA(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
INLINE double FMA(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
template <class T> INLINE T FMA(T a, T b, T c) { return a * b + c; }
#endif
"""
"""FMA: an explicit fused multiply-add if the processor has it; compilers may not form one implicitly in kernels
(`SEPARATE` in runtime/build.py).

The C library's functions are declared in this text: reading C++'s own <math.h> takes longer than compiling a kernel.
"""

FUNCTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "bf16_load": ("INLINE float bf16_load(uint16_t h) { return as_float((uint32_t)h << 16); }", ()),
    "bf16_bits": (
        """\
INLINE uint32_t bf16_bits(float x) {  // round to nearest even; NaN stays quiet
    uint32_t u = as_bits(x), r = u + 0x7fffu + ((u >> 16) & 1u);
    return x != x ? 0x7fc00000u : r;
}""",
        (),
    ),
    "bf16_round": (
        "INLINE float bf16_round(float x) { return as_float(bf16_bits(x) & 0xffff0000u); }",
        ("bf16_bits",),
    ),
    "bf16_store": (
        "INLINE uint16_t bf16_store(float x) { return (uint16_t)(as_bits(x) >> 16); }  // x is rounded already",
        (),
    ),
    "f16_load": (
        """\
INLINE float f16_load(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = (uint32_t)(h & 0x7fffu) << 13;
    uint32_t special = rest >= 0x0f800000u ? 0x70000000u : 0u;  // infinity and NaN keep a full exponent
    float x = as_float(rest + special) * 0x1p112f;
    return as_float(as_bits(rest >= 0x0f800000u ? as_float(rest + special) : x) | sign);
}""",
        (),
    ),
    "f16_store": (
        """\
INLINE uint16_t f16_store(float x) {  // round to nearest even; NaN keeps the bits that there is room for
    uint32_t u = as_bits(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    uint32_t normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
    uint32_t tiny = as_bits(as_float(a) + 0.5f) - 0x3f000000u;  // below 2^-14 the addition does the rounding
    uint32_t r = a < 0x38800000u ? tiny : normal;
    r = a >= 0x477ff000u ? 0x7c00u : r;
    uint32_t nan = (a >> 13) & 0x7fffu;
    r = a > 0x7f800000u ? (nan == 0x7c00u ? 0x7e00u : nan) : r;
    return (uint16_t)(r | sign);
}""",
        (),
    ),
    "f16_round": (
        "INLINE float f16_round(float x) { return f16_load(f16_store(x)); }",
        ("f16_load", "f16_store"),
    ),
    "pow2_scale": (
        """\
INLINE float pow2_scale(float x, int32_t n) {  // x * 2^n in two steps: n from -252 to 254
    int32_t half = n >> 1;
    return x * as_float((uint32_t)(half + 127) << 23) * as_float((uint32_t)(n - half + 127) << 23);
}""",
        (),
    ),
    "exp_core": (
        """\
#define ROUND_MAGIC 12582912.0f  // 1.5 * 2^23: adding it rounds to an integer
INLINE float exp_poly(float r) {  // (exp(r) - 1 - r) / r^2 for |r| <= ln(2)/2
    float p = 1.99215268e-4f;
    p = FMA(p, r, 1.39483728e-3f);
    p = FMA(p, r, 8.33325833e-3f);
    p = FMA(p, r, 4.16662358e-2f);
    p = FMA(p, r, 1.66666672e-1f);
    return FMA(p, r, 0.5f);
}""",
        (),
    ),
    "exp": (
        """\
INLINE float m_exp(float x) {
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    float n = FMA(x, 1.44269504f, ROUND_MAGIC) - ROUND_MAGIC;
    float r = FMA(n, -0.693359375f, x);
    r = FMA(n, 2.12194440e-4f, r);
    return pow2_scale(FMA(exp_poly(r), r * r, r) + 1.0f, (int32_t)n);
}
INLINE double m_exp(double x) { return exp(x); }""",
        ("pow2_scale", "exp_core"),
    ),
    "expm1": (
        """\
INLINE float m_expm1(float x) {
    x = x > 89.0f ? 89.0f : x;
    float c = x < -25.0f ? -25.0f : x;
    float n = FMA(c, 1.44269504f, ROUND_MAGIC) - ROUND_MAGIC;
    float r = FMA(n, -0.693359375f, c);
    r = FMA(n, 2.12194440e-4f, r);
    float p = FMA(exp_poly(r), r * r, r);
    float half = as_float((uint32_t)((int32_t)n - 1 + 127) << 23);
    float y = 2.0f * FMA(half, p, half - 0.5f);
    y = n == 0.0f ? p : y;
    return x == 0.0f ? x : y;  // the sign of a zero
}
INLINE double m_expm1(double x) { return expm1(x); }""",
        ("exp_core",),
    ),
    "exp2": (
        """\
INLINE float m_exp2(float x) {
    x = x > 129.0f ? 129.0f : x;
    x = x < -151.0f ? -151.0f : x;
    float n = (x + ROUND_MAGIC) - ROUND_MAGIC;
    float r = (x - n) * 0.693147181f;
    return pow2_scale(FMA(exp_poly(r), r * r, r) + 1.0f, (int32_t)n);
}
INLINE double m_exp2(double x) { return exp2(x); }""",
        ("pow2_scale", "exp_core"),
    ),
    "log": (
        """\
INLINE float log_poly(float f) {  // (log1p(f) - f + f^2/2) / f^3 for sqrt(1/2) <= 1 + f <= sqrt(2)
    float q = 6.91539273e-2f;
    q = FMA(q, f, -1.17897913e-1f);
    q = FMA(q, f, 1.18729569e-1f);
    q = FMA(q, f, -1.23843506e-1f);
    q = FMA(q, f, 1.42186612e-1f);
    q = FMA(q, f, -1.66692510e-1f);
    q = FMA(q, f, 2.00022265e-1f);
    q = FMA(q, f, -2.49999866e-1f);
    return FMA(q, f, 3.33333105e-1f);
}
INLINE float m_log(float x) {
    float big = x < 1.17549435e-38f ? x * 8388608.0f : x;  // denormals
    float base = x < 1.17549435e-38f ? -23.0f : 0.0f;
    uint32_t u = as_bits(big) - 0x3f3504f3u;  // sqrt(1/2): puts the mantissa into sqrt(1/2) .. sqrt(2)
    float e = (float)((int32_t)u >> 23) + base;
    float f = as_float((u & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    float y = FMA(log_poly(f) * f, f * f, e * -2.12194440e-4f);
    y = FMA(f * f, -0.5f, y);
    y = FMA(e, 0.693359375f, f + y);
    y = x == 0.0f ? -INFINITY : y;
    y = x < 0.0f ? NAN : y;
    return (x == INFINITY) | (x != x) ? x : y;
}
INLINE double m_log(double x) { return log(x); }""",
        (),
    ),
    "log2": (
        """\
INLINE float m_log2(float x) {
    float big = x < 1.17549435e-38f ? x * 8388608.0f : x;
    float base = x < 1.17549435e-38f ? -23.0f : 0.0f;
    uint32_t u = as_bits(big) - 0x3f3504f3u;
    float e = (float)((int32_t)u >> 23) + base;
    float f = as_float((u & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    float y = FMA(log_poly(f) * f, f * f, -0.5f * (f * f));
    y = FMA(y, 1.44269504f, f * 0.44269504f) + f + e;
    y = x == 0.0f ? -INFINITY : y;
    y = x < 0.0f ? NAN : y;
    return (x == INFINITY) | (x != x) ? x : y;
}
INLINE double m_log2(double x) { return log2(x); }""",
        ("log",),
    ),
    "log10": (
        """\
INLINE float m_log10(float x) {  // e * log10(2) in two parts, log(1 + f) * log10(e)
    float big = x < 1.17549435e-38f ? x * 8388608.0f : x;
    float base = x < 1.17549435e-38f ? -23.0f : 0.0f;
    uint32_t u = as_bits(big) - 0x3f3504f3u;
    float e = (float)((int32_t)u >> 23) + base;
    float f = as_float((u & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    float y = f + FMA(log_poly(f) * f, f * f, -0.5f * (f * f));
    y = FMA(e, 0.301025391f, FMA(y, 0.434294482f, e * 4.60503908e-6f));
    y = x == 0.0f ? -INFINITY : y;
    y = x < 0.0f ? NAN : y;
    return (x == INFINITY) | (x != x) ? x : y;
}
INLINE double m_log10(double x) { return log10(x); }""",
        ("log",),
    ),
    "log1p": (
        """\
INLINE float m_log1p(float x) {  // log(u) with u = 1 + x, plus what the rounding of u lost
    float u = 1.0f + x;
    float lost = (x - (u - 1.0f)) / u;
    float y = m_log(u);
    y = (u == INFINITY) | !(u > 0.0f) ? y : y + lost;
    return x == 0.0f ? x : y;  // the sign of a zero
}
INLINE double m_log1p(double x) { return log1p(x); }""",
        ("log",),
    ),
    "sigmoid": (
        """\
INLINE float m_sigmoid(float x) { return 1.0f / (1.0f + m_exp(-x)); }
INLINE double m_sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }""",
        ("exp",),
    ),
    "tanh": (
        """\
INLINE float m_tanh(float x) {  // e / (e + 2) with e = exp(2|x|) - 1
    float a = as_float(as_bits(x) & 0x7fffffffu);
    a = a > 10.0f ? 10.0f : a;
    float e = m_expm1(a + a);
    float t = e / (e + 2.0f);
    t = as_float(as_bits(t) | (as_bits(x) & 0x80000000u));
    return x != x ? x : t;
}
INLINE double m_tanh(double x) { return tanh(x); }""",
        ("expm1",),
    ),
    "erf": (
        """\
INLINE float m_erf(float x) {  // x + x*P(x^2) below 0.92; 1 - exp(-Q(|x|)) above
    float a = as_float(as_bits(x) & 0x7fffffffu), s = x * x;
    float p = 8.40992943e-5f;
    p = FMA(p, s, -8.15263018e-4f);
    p = FMA(p, s, 5.20196045e-3f);
    p = FMA(p, s, -2.68597994e-2f);
    p = FMA(p, s, 1.12837031e-1f);
    p = FMA(p, s, -3.76126349e-1f);
    p = FMA(p, s, 1.28379226e-1f);
    float small = FMA(p, x, x);
    float t = a > 3.95f ? 3.95f : a;
    float q = 2.09097034e-5f;
    q = FMA(q, t, -4.32304660e-4f);
    q = FMA(q, t, 4.16053459e-3f);
    q = FMA(q, t, -2.50915159e-2f);
    q = FMA(q, t, 1.08236648e-1f);
    q = FMA(q, t, 6.33386612e-1f);
    q = FMA(q, t, 1.12949514f);
    q = FMA(q, t, -1.70554238e-4f);
    float n = FMA(q, -1.44269504f, ROUND_MAGIC) - ROUND_MAGIC;  // exp(-q), 1.6 < q < 17.5 where it counts
    float r = FMA(n, -0.693147181f, -q);
    float e = (FMA(exp_poly(r), r * r, r) + 1.0f) * as_float((uint32_t)((int32_t)n + 127) << 23);
    float large = a >= 3.92f ? 1.0f : 1.0f - e;
    large = as_float(as_bits(large) | (as_bits(x) & 0x80000000u));
    return a > 0.92f ? large : small;  // NaN takes the small branch
}
INLINE double m_erf(double x) { return erf(x); }""",
        ("exp_core",),
    ),
    "trig": (
        """\
INLINE int is_far(float x) {  // finite, and more than 1e8 from 0
    return (as_bits(x) & 0x7fffffffu) - 0x4cbebc21u < 0x7f800000u - 0x4cbebc21u;
}
static __attribute__((noinline, cold)) float far_angle(float x, int32_t *quadrant) {  // x - *quadrant * pi/2, any x
    static const uint32_t bits[7] = {  // of 2/pi behind the point
        0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};
    uint32_t u = as_bits(x), at = ((u >> 23) & 255u) - 152u;  // x is a whole number times 2^(at + 2)
    const uint32_t *w = bits + (at >> 5);
    uint64_t m = (u & 0x7fffffu) | 0x800000u, high = (uint64_t)w[0] << 32 | w[1], low = (uint64_t)w[2] << 32 | w[3];
    at &= 31u;  // what is above makes whole turns
    high = at ? high << at | low >> (64u - at) : high;
    uint64_t turns = m * high + ((m * ((low << at) >> 32)) >> 32);
    turns = (u >> 31) ? 0u - turns : turns;  // in 2^-64 of a turn
    uint64_t near = turns + ((uint64_t)1 << 61);
    *quadrant = (int32_t)(near >> 62);
    return (float)((double)(int64_t)(turns - (near & (uint64_t)3 << 62)) * 0x1.921fb54442d18p-62);
}
template <bool FAR> INLINE float trig(float x, int32_t turn) {  // sin(x + turn * pi/2); without FAR up to 1e8
    double d = (double)x;
    double n = FMA(d, 0.63661977236758134, 6755399441055744.0) - 6755399441055744.0;
    double rd = FMA(n, -0x1.921fb54p+0, d);  // 27 bits of pi/2: exact
    rd = FMA(n, -0x1.10b4611a62633p-30, rd);
    float r = (float)rd;
    int32_t q = (int32_t)(float)FMA(floor(n * 0.25), -4.0, n);
    if constexpr (FAR)
        if (is_far(x)) r = far_angle(x, &q);
    float s = r * r;
    q += turn;
    float sine = FMA(s, 2.71756426e-6f, -1.98392561e-4f);
    sine = FMA(sine, s, 8.33332911e-3f);
    sine = FMA(sine, s, -1.66666672e-1f);
    sine = FMA(sine, s * r, r);
    float cosine = FMA(s, 2.44312069e-5f, -1.38873060e-3f);
    cosine = FMA(cosine, s, 4.16666456e-2f);
    cosine = FMA(cosine, s * s, FMA(s, -0.5f, 1.0f));
    float y = (q & 1) ? cosine : sine;
    y = (q & 2) ? -y : y;
    return x - x != 0.0f ? NAN : y;
}""",
        (),
    ),
    "sin": (
        """\
template <bool FAR> INLINE float m_sin(float x) { return x == 0.0f ? x : trig<FAR>(x, 0); }
INLINE double m_sin(double x) { return sin(x); }""",
        ("trig",),
    ),
    "cos": (
        """\
template <bool FAR> INLINE float m_cos(float x) { return trig<FAR>(x, 1); }
INLINE double m_cos(double x) { return cos(x); }""",
        ("trig",),
    ),
    "erfinv": (
        """\
INLINE double erfinv_wide(double x) {  // a logarithmic estimate, then Halley's steps on erf, or on erfc near 1
    double a = fabs(x), c = 1.0 - a;
    double l = log(c * (1.0 + a)), t = 4.3307467508 + 0.5 * l;
    double y = sqrt(sqrt(t * t - 6.8027 * l) - t);
    for (int k = 0; k < 3; k++) {
        double r = (a < 0.5 ? erf(y) - a : c - erfc(y)) / (1.1283791670955126 * exp(-y * y));
        y -= r / (1.0 + r * y);
    }
    return copysign(y, x);
}
INLINE double m_erfinv(double x) {
    if (!(x > -1.0 && x < 1.0)) return x == 1.0 ? INFINITY : x == -1.0 ? -INFINITY : NAN;
    return x == 0.0 ? x : erfinv_wide(x);
}
INLINE float m_erfinv(float x) { return (float)m_erfinv((double)x); }""",
        (),
    ),
    "digamma": (
        """\
INLINE double m_digamma(double x) {  // reflection, recurrence up to 10, asymptotic series
    if (x == 0.0) return copysign(INFINITY, -x);
    double y = 0.0;
    if (x < 0.0) {
        double whole, part = modf(x, &whole);
        if (part == 0.0) return NAN;
        y = -3.14159265358979323846 / tan(3.14159265358979323846 * part);
        x = 1.0 - x;
    }
    for (; x < 10.0; x += 1.0) y -= 1.0 / x;
    double z = 1.0 / (x * x);
    double s = 1.0/12 - z*(1.0/120 - z*(1.0/252 - z*(1.0/240 - z*(1.0/132 - z*(691.0/32760 - z/12)))));
    return y + log(x) - 0.5 / x - z * s;
}
INLINE float m_digamma(float x) { return (float)m_digamma((double)x); }""",
        (),
    ),
    "sign": (
        "template <class T> INLINE T m_sign(T x) { return (T)((x > T(0)) - (x < T(0))); }",
        (),
    ),
    "abs": (
        """\
INLINE float m_abs(float x) { return fabsf(x); }
INLINE double m_abs(double x) { return fabs(x); }
template <class T> INLINE T m_abs(T x) { return x < T(0) ? (T)-(uint64_t)x : x; }""",
        (),
    ),
    "maximum": (
        "template <class T> INLINE T m_maximum(T a, T b) { return (b > a) | (b != b) ? b : a; }  // of zeros the first",
        (),
    ),
    "minimum": (
        "template <class T> INLINE T m_minimum(T a, T b) { return (b < a) | (b != b) ? b : a; }",
        (),
    ),
    "shift_left": (
        """\
template <class T> INLINE T m_shift_left(T a, T b) {  // by less than 0, or by the width or more: nothing is left
    const uint64_t width = 8 * sizeof(T), n = (uint64_t)b;
    return n < width ? (T)((uint64_t)a << (n & (width - 1))) : T(0);
}""",
        (),
    ),
    "shift_right": (
        """\
template <class T> INLINE T m_shift_right(T a, T b) {  // by less than 0, or by the width or more: the sign is left
    const uint64_t width = 8 * sizeof(T), n = (uint64_t)b;
    T sign = a < T(0) ? T(-1) : T(0);
    return n < width ? (T)(a >> (n & (width - 1))) : sign;
}""",
        (),
    ),
    "trunc_div": (
        """\
INLINE float m_trunc_div(float a, float b) { return truncf(a / b); }
INLINE double m_trunc_div(double a, double b) { return trunc(a / b); }
template <class T> INLINE T m_trunc_div(T a, T b) {  // guards what would trap: 0, and the lowest number by -1
    bool negates = (T(-1) < T(0)) & (b == T(-1));
    T safe = (b == T(0)) | negates ? T(1) : b;
    T q = (T)(a / safe);
    return b == T(0) ? T(0) : negates ? (T)-(uint64_t)a : q;
}""",
        (),
    ),
    "fmod": (
        """\
INLINE float m_fmod(float a, float b) { return fmodf(a, b); }
INLINE double m_fmod(double a, double b) { return fmod(a, b); }
template <class T> INLINE T m_fmod(T a, T b) {
    T safe = (b == T(0)) | ((T(-1) < T(0)) & (b == T(-1))) ? T(1) : b;
    return (T)(a % safe);
}""",
        (),
    ),
    "remainder": (
        """\
template <class T> INLINE T m_remainder(T a, T b) {
    T r = m_fmod(a, b);
    return (r != T(0)) & ((b < T(0)) != (r < T(0))) ? (T)(r + b) : r;
}""",
        ("fmod",),
    ),
    "floor_div": (
        """\
template <class F> INLINE F floor_div_float(F a, F b) {
    if (b == F(0)) return a / b;
    F mod = m_fmod(a, b), div = (a - mod) / b;
    if (mod != F(0) && (b < F(0)) != (mod < F(0))) div -= F(1);
    if (div == F(0)) return (F)copysign((double)0.0, (double)(a / b));
    F whole = (F)floor((double)div);
    return div - whole > F(0.5) ? whole + F(1) : whole;
}
INLINE float m_floor_div(float a, float b) { return floor_div_float(a, b); }
INLINE double m_floor_div(double a, double b) { return floor_div_float(a, b); }
template <class T> INLINE T m_floor_div(T a, T b) {
    T q = m_trunc_div(a, b), r = m_fmod(a, b);
    return (r != T(0)) & ((b < T(0)) != (r < T(0))) ? (T)(q - 1) : q;
}""",
        ("trunc_div", "fmod"),
    ),
    "pow": (
        """\
INLINE float m_pow(float a, float b) { return powf(a, b); }
INLINE double m_pow(double a, double b) { return pow(a, b); }
template <class T> INLINE T m_pow(T a, T b) {  // negative exponents: only +1 and -1 have integer powers
    if (b < T(0)) return a == T(1) ? T(1) : a == T(-1) ? ((uint64_t)b & 1 ? T(-1) : T(1)) : T(0);
    uint64_t x = (uint64_t)a, y = 1;
    for (uint64_t n = (uint64_t)b; n; n >>= 1, x *= x) y *= n & 1 ? x : 1;
    return (T)y;
}""",
        (),
    ),
    "unknown_zero": (
        """\
INLINE int32_t unknown_zero() {
    static volatile int32_t zero = 0;
    return zero;
}""",
        (),
    ),
    "random": (
        """\
// smelt.prims.random_bits in C: a SplitMix64 step gives the key words, two 32-bit mixing rounds the value
INLINE uint64_t random_key(int64_t seed, uint64_t stream) {
    uint64_t z = (uint64_t)seed + 0x9E3779B97F4A7C15u * (stream + 1);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
INLINE uint32_t random_mix(uint32_t w) {
    w = (w ^ (w >> 16)) * 0x7FEB352Du;
    w = (w ^ (w >> 15)) * 0x846CA68Bu;
    return w ^ (w >> 16);
}
INLINE float random_uniform(uint32_t low, uint32_t high, uint32_t counter) {
    return (float)(int32_t)(random_mix(random_mix(counter + low) + high) >> 8) * 0x1p-24f;
}""",
        (),
    ),
}


def header(used: Iterable[str]) -> str:
    """Returns the start of a translation unit: includes and the named functions, each after the functions it needs."""
    return "\n".join([PRELUDE, *with_needs(used, FUNCTIONS)]) + "\n"
