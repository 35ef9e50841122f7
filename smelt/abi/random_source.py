"""Source text of the random generator for Triton kernels, in `codegen` and `runtime`; equals prims/random_bits."""

from __future__ import annotations

RANDOM_FUNCTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "random_key": (
        """\
def random_key(seed, step):
    z = seed.to(tl.uint64) + step.to(tl.uint64)
    z = (z ^ (z >> 30)) * tl.full([], 0xBF58476D1CE4E5B9, tl.uint64)
    z = (z ^ (z >> 27)) * tl.full([], 0x94D049BB133111EB, tl.uint64)
    return z ^ (z >> 31)""",
        (),
    ),
    "random_mix": (
        """\
def random_mix(w):
    w = (w ^ (w >> 16)) * tl.full([], 0x7FEB352D, tl.uint32)
    w = (w ^ (w >> 15)) * tl.full([], 0x846CA68B, tl.uint32)
    return w ^ (w >> 16)""",
        (),
    ),
    "random_uniform": (
        """\
def random_uniform(key, place):
    low = key.to(tl.uint32)
    high = (key >> 32).to(tl.uint32)
    bits = random_mix(random_mix(place.to(tl.uint32) + low) + high)
    return (bits >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08""",
        ("random_mix",),
    ),
}
"""The text of each function and the functions that it calls."""

GOLDEN = 0x9E3779B97F4A7C15


def key_step(stream: int) -> int:
    """Returns the int64 that `random_key` adds to the seed for this stream."""
    step = GOLDEN * (stream + 1) % 2**64
    return step - (step >> 63 << 64)
