"""The text of smelt's depthwise convolution kernels, for images in channels-last memory.

A thread computes `V` adjacent channels of `along` pixels in a row of the image `made`. It reads each pixel of a row of
the other image once, for all windows that contain it; windows are unrolled along the row, so that the pairs of window
elements and pixels are known when the text is written. For the weight gradient it keeps a sum for each element of the
window and walks down the rows; a last kernel adds the programs' partial sums, in order. Sums are float32.

Sizes and strides are arguments, so one kernel serves all images of a window. Channels, and strides of pixels, rows and
images, are counted in vectors, so that the compiler knows that wide loads are aligned. Weights are ordered by element
of the window, with channels innermost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from smelt.base.text import Writer

NUMBERS = ("items", "groups", "rows", "columns", "height", "width", "units", "rn", "rh", "rw", "mn", "mh", "mw")
"""Names of the sizes that kernels take: `items`, the number of work items, of which each row of the image `made` has
`groups` times `units` (of channels); its `rows` and `columns`, height and width of the image `read`, and the strides of
both images.
"""


@dataclass(frozen=True)
class Window:
    """The window of a kernel; each pair is (rows, columns).

    Attributes:
        multiplier: number of output channels for each input channel.
        along: number of pixels in a row that a thread computes; a multiple of the stride for the input gradient.
    """

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    multiplier: int = 1
    along: int = 4

    def by_position(self) -> dict[int, list[tuple[int, int]]]:
        """Returns the window elements at each position in a row, counted from the first position that the windows
        cover.

        An element is a pair (index of the window among `along` adjacent windows, column in the window).
        """
        stride, dilation = self.stride[1], self.dilation[1]
        return _sorted((t * stride + s * dilation, (t, s)) for t in range(self.along) for s in range(self.size[1]))

    def by_position_of_gradient(self) -> dict[int, list[tuple[int, int]]]:
        """For the input gradient: returns for each index of a window the pixels that the window contains.

        Windows are counted from the first of the group. A pixel is a pair (index among the `along` adjacent pixels, its
        column in the window).
        """
        stride, dilation, padding = self.stride[1], self.dilation[1], self.padding[1]
        met = ((t + padding - s * dilation, (t, s)) for t in range(self.along) for s in range(self.size[1]))
        return _sorted((position // stride, pair) for position, pair in met if position % stride == 0)

    @property
    def row_step(self) -> int:
        """Returns the distance between the rows of a window that coincide with a given row of the image."""
        down = self.stride[0]
        return down if self.dilation[0] % down == 1 % down else 1

    def walk(self) -> tuple[int, list[tuple[int, list[tuple[int, int]]]]]:
        """Returns the order in which a walk down the rows of the result reads the rows of x, each once: (rows of a
        step, meetings).

        A meeting is a row of x, counted from the first in the window of the current row, and the rows of windows that
        coincide with it: pairs of (row of the window, steps since the row of the result was current).
        """
        high, stride, dilation = self.size[0], self.stride[0], self.dilation[0]
        if dilation == 1:
            return 1, [(q, [(r, r // stride) for r in range(q, high, stride)]) for q in range(min(stride, high))]
        if stride == 1:
            return dilation, [(0, [(r, r) for r in range(high)])]
        return 1, [(r * dilation, [(r, 0)]) for r in range(high)]

    def num_registers(self) -> int:
        """Number of values that a thread of the weight gradient keeps in registers for each channel."""
        return self.size[0] * self.size[1] + (self.oldest + 1) * self.along + len(self.by_position())

    @property
    def oldest(self) -> int:
        """Maximum number of steps of that walk between a row of the result and a row of x in its window."""
        return max(m for _, pairs in self.walk()[1] for _, m in pairs)


def _sorted(pairs: Iterable[tuple[int, tuple[int, int]]]) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for position, pair in sorted(pairs):
        found.setdefault(position, []).append(pair)
    return found


@contextmanager
def _kernel(w: Writer, parameters: Sequence[str], constants: Sequence[str]) -> Iterator[None]:
    w("import triton", "import triton.language as tl", "", "", "@triton.jit")
    with w.block(f"def kernel({', '.join(parameters)}, {', '.join(f'{name}: tl.constexpr' for name in constants)}):"):
        yield


def _position(w: Writer) -> None:
    """Write lines for group number p of the computed pixels: its image, row i, and group j of the row."""
    w("j = p % groups", "p = p // groups", "i = p % rows", "image = (p // rows).to(tl.int64)[:, None]")


def _open_item(w: Writer, along: int) -> None:
    """Write lines that define the pixels and channels of a thread, with sums of 0."""
    w("e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", "inside = e < items", "u = e % units", "p = e // units")
    _position(w)
    w("c = (u * V)[:, None] + tl.arange(0, V)[None, :]")
    w(*(f"s{t} = tl.zeros([BLOCK, V], tl.float32)" for t in range(along)))


def _close_item(w: Writer, along: int) -> None:
    w(f"at = made + image * (mn * V) + (i * mh + j * {along} * mw)[:, None] * V + c")
    for t in range(along):
        w(f"tl.store(at + {t} * mw * V, s{t}.to(made.dtype.element_ty), (inside & {_exists(along, t)})[:, None])")


def _exists(along: int, t: int) -> str:
    """Returns the text of a test of whether pixel t of a group is in the row."""
    return f"(j * {along} < columns - {t})"


def _within(position: int) -> str:
    """Returns the text of a test of whether a position, counted from `left`, is in the row that is read."""
    return f"(left >= {-position}) & (left < width - {position})"


def _load(w: Writer, position: int, mask: str) -> None:
    w(f"x = tl.load(row + {position} * rw * V, {mask}, 0).to(tl.float32)")


def _weights(w: Writer, wide: int, channels: int, which: int, guard: str = "") -> None:
    """Write lines that load row r of the window, for output channel number `which` of each input channel."""
    own = "c" if channels == 1 else f"c * {channels} + {which}"
    w(f"taps = w + (r * {wide * channels} * units)[:, None] * V + {own}")
    for s in range(wide):
        w(f"w{s} = tl.load(taps + {s * channels} * units * V{guard}).to(tl.float32)")


def _of(channel: str, multiplier: int) -> str:
    """Returns the text of an output channel's input channel. It omits a division by 1, which would prevent wide
    loads.
    """
    return channel if multiplier == 1 else f"{channel} // {multiplier}"


def forward_source(window: Window, bias: bool) -> str:
    """Returns the source of the forward kernel, which reads x, w and bias and computes the convolution."""
    (high, wide), (down, right), (top, left) = window.size, window.stride, window.padding
    w = Writer()
    with _kernel(w, ("read", "w", "bias", "made", *NUMBERS), ("V", "BLOCK")):
        _open_item(w, window.along)
        w(f"left = j * {window.along * right} - {left}")
        w(f"first = read + image * (rn * V) + {_of('c', window.multiplier)}")
        with w.block(f"for k in range({high}):"):
            # `_weights` takes a row for each thread, since these differ in the input gradient
            w("r = k + u * 0", f"y = i * {down} + (k * {window.dilation[0]} - {top})")
            w("there = inside & (y >= 0) & (y < height)")
            w("row = first + (y * rh + left * rw)[:, None] * V")
            _weights(w, wide, 1, 0)
            for position, pairs in window.by_position().items():
                _load(w, position, f"(there & {_within(position)})[:, None]")
                w(*(f"s{t} += x * w{s}" for t, s in pairs))
        if bias:
            w("b = tl.load(bias + c).to(tl.float32)", *(f"s{t} += b" for t in range(window.along)))
        _close_item(w, window.along)
    return w.text()


def input_source(window: Window) -> str:
    """Returns the source of the input gradient's kernel, which reads the result's gradient and w."""
    w = Writer()
    with _kernel(w, ("read", "w", "made", *NUMBERS), ("V", "BLOCK")):
        _open_item(w, window.along)
        w(f"left = j * {window.along // window.stride[1]}", f"low = i + {window.padding[0]}")
        for which in range(window.multiplier):
            own = "c" if window.multiplier == 1 else f"c * {window.multiplier} + {which}"
            w(f"first = read + image * (rn * V) + {own}")
            with w.block(f"for k in range({-(-window.size[0] // window.row_step)}):"):
                _input_row(w, window, which)
        _close_item(w, window.along)
    return w.text()


def _input_row(w: Writer, window: Window, which: int) -> None:
    """Write lines for row r of the window, number k of the window's rows that coincide with the computed row."""
    (high, wide), down, step = window.size, window.stride[0], window.row_step
    rest = high % step > 0
    w(f"r = low % {step} + k * {step}", f"y = low - r * {window.dilation[0]}")
    conditions = ["inside", "(y >= 0)", f"(y < height * {down})"]
    conditions += [f"(r < {high})"] if rest else []
    conditions += [f"(y % {down} == 0)"] if step != down else []
    w(f"there = {' & '.join(conditions)}", f"row = first + (y // {down} * rh + left * rw)[:, None] * V")
    _weights(w, wide, window.multiplier, which, f", (r < {high})[:, None], 0" if rest else "")
    for position, pairs in window.by_position_of_gradient().items():
        _load(w, position, f"(there & {_within(position)})[:, None]")
        w(*(f"s{t} += x * w{s}" for t, s in pairs))


def weight_source(window: Window) -> str:
    """Returns the source of the weight gradient's kernel, which reads x and the result's gradient and computes partial
    sums.

    Partial sums are `parts`[program, element of the window, channel]. A thread walks down the rows and keeps each row
    of the gradient that it has read for all rows of x in its windows.
    """
    high, wide, along = *window.size, window.along
    walk, meetings = window.walk()
    sums = [(r, s) for r in range(high) for s in range(wide)]
    w = Writer()
    names = ("made", "read", "parts", "turns", "segments", "length", "begin", *NUMBERS)
    with _kernel(w, names, ("V", "PLACES", "CHANNELS")):
        w("c = (tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS))[None, :]", "known = c < units * V")
        w(*(f"s{r}_{s} = tl.zeros([PLACES, CHANNELS], tl.float32)" for r, s in sums))
        with w.block("for turn in range(turns):"):
            w("p = (tl.program_id(1) * turns + turn) * PLACES + tl.arange(0, PLACES)", "inside = p < items")
            w("j = p % groups", "p = p // groups", "segment = p % segments", "p = p // segments")
            w(f"i = begin + p % {walk} + segment * length * {walk}", f"image = (p // {walk}).to(tl.int64)[:, None]")
            w(f"line = made + image * (mn * V) + (j * {along} * mw)[:, None] * V + c")
            w(f"left = j * {along * window.stride[1]} - {window.padding[1]}")
            w(f"first = read + image * (rn * V) + (left * rw)[:, None] * V + {_of('c', window.multiplier)}")
            for m in range(1, window.oldest + 1):
                _gradients(w, window, m, f"(i - {m * walk})")
            with w.block("for step in range(length):"):
                _gradients(w, window, 0, "i")
                for offset, pairs in meetings:
                    _meet(w, window, offset, pairs)
                for m in range(window.oldest, 0, -1):
                    w(*(f"g{m}_{t} = g{m - 1}_{t}" for t in range(along)))
                w(f"i += {walk}")
        w(f"at = parts + tl.program_id(1) * {high * wide} * units * V + c")
        w(*(f"tl.store(at + {n} * units * V, tl.sum(s{r}_{s}, 0)[None, :], known)" for n, (r, s) in enumerate(sums)))
    return w.text()


def _gradients(w: Writer, window: Window, m: int, row: str) -> None:
    """Write lines with the text of a row of the gradient, the one of m steps ago."""
    w(f"there = inside & ({row} >= 0) & ({row} < rows)", f"row = line + ({row} * mh)[:, None] * V")
    for t in range(window.along):
        mask = f"(there & {_exists(window.along, t)})[:, None] & known"
        w(f"g{m}_{t} = tl.load(row + {t} * mw * V, {mask}, 0).to(tl.float32)")


def _meet(w: Writer, window: Window, offset: int, pairs: Sequence[tuple[int, int]]) -> None:
    """Write lines that read a row of x and multiply it by the kept gradients; pixels in no window are not read."""
    oldest = max(m for _, m in pairs) * window.walk()[0]
    w(f"y = i * {window.stride[0]} + {offset - window.padding[0]}")
    w(f"there = inside & (y >= 0) & (y < height) & (i < rows + {oldest})")
    w("row = first + (y * rh)[:, None] * V")
    for position, met in window.by_position().items():
        _load(w, position, f"(there & {_within(position)} & {_exists(window.along, min(met)[0])})[:, None] & known")
        w(*(f"s{r}_{s} += g{m}_{t} * x" for r, m in pairs for t, s in met))


def sum_source(wide: int) -> str:
    """Returns the source of the kernel that adds partial sums, `parts`, to the weight gradient."""
    w = Writer()
    with _kernel(w, ("parts", "out", "count", "cells", "channels", "step", "down", "right"), ("PARTS", "CELLS")):
        w("k = tl.program_id(0) * CELLS + tl.arange(0, CELLS)", "total = tl.zeros([PARTS, CELLS], tl.float32)")
        with w.block("for start in range(0, count, PARTS):"):
            w("part = (start + tl.arange(0, PARTS))[:, None]")
            w("total += tl.load(parts + part * cells + k[None, :], (part < count) & (k < cells)[None, :], 0)")
        w("c = k % channels", "element = k // channels")
        w(f"at = out + c * step + (element // {wide}) * down + (element % {wide}) * right")
        w("tl.store(at, tl.sum(total, 0).to(out.dtype.element_ty), k < cells)")
    return w.text()
