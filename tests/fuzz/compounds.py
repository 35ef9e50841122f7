"""Statements of several lines, as templates like those of `templates`: generators, classes, contexts, coroutines.

A name in small letters (`{f}`) is a fresh one, the same in all lines. A line `BODY` becomes some statements, `LOOP`
those of a loop, `INNER` those of a function (`INNER T:p`: p is a tensor in it). Each template comes with the fresh
names that are variables of a type after it.
"""

from __future__ import annotations

COMPOUNDS: tuple[tuple[str, dict[str, str]], ...] = (
    # generators
    ("""
def {f}({p}):
    try:
        {k} = yield {p} + {I}
        INNER T:p
        while {k}:
            {k} = yield {p} * {k}
    except ValueError as {e}:
        print('caught', {e}.args)
        yield {T}
    finally:
        print('closed')
{g} = {f}({T})
{t} = next({g})
""", {"g": "G", "t": "T"}),
    ("""
def {f}({p}):
    {k} = yield from generate({p}, {I} % 3)
    print('got', {k})
    yield from (({p} + {i}) for {i} in range({I} % 3))
    return {k}
{l} = list({f}({T}))
""", {"l": "LT"}),
    ("""
{g} = generate({T}, 3)
for {t} in {g}:
    LOOP T:t
    if {B}:
        {g}.close()
""", {"g": "G"}),
    ("""
try:
    {t} = {G!}.throw({E}({S}))
except {E} as {e}:
    print(type({e}).__name__)
    BODY
""", {}),
    ("""
def {f}({p}):
    while True:
        try:
            {p} = {p} + (yield {p})
        except GeneratorExit:
            print('left')
            raise
        except {E}:
            INNER T:p
            return {T}
{g} = {f}({T})
{t} = next({g})
{t} = {g}.send({T})
""", {"g": "G", "t": "T"}),
    # loops: functions made in them, exceptions and jumps through finally
    ("""
{l} = []
for {i} in range(3):
    {l}.append(lambda {p}: {p} * {i} + {I})
    LOOP I:i
{t} = {l}[0]({T}) + {l}[-1]({T})
""", {"t": "T"}),
    ("""
for {i} in {L}:
    try:
        LOOP I:i
        if {B}:
            break
    except {E}:
        continue
    else:
        BODY
    finally:
        BODY I:i
        if {B}:
            continue
else:
    BODY
""", {}),
    ("""
{n} = 0
while ({n} := {n} + 1) < 4:
    with managed({S}), Recorder({S}, swallow={B}):
        if {B}:
            continue
        LOOP I:n
        if {n} > {I}:
            break
""", {"n": "I"}),
    ("""
{l} = [{y} for {i} in {L} if ({y} := {i} + {I}) > 0]
{t} = {T} * {y}
""", {"l": "L", "t": "T"}),
    ("""
{a}, *{b}, {c} = {LT}
{t} = {a} + {c} + len({b})
""", {"t": "T", "b": "LT"}),
    ("""
({a}, [{b}, *{c}]), {t} = ({I}, {L}), {T}
""", {"a": "I", "b": "I", "c": "L", "t": "T"}),
    # contexts
    ("""
with contextlib.ExitStack() as {s}:
    {t} = {s}.enter_context(managed({S}))
    {s}.callback(print, 'called', {I})
    {s}.push(lambda *{a}: {a}[0] is ValueError)
    BODY
    if {B}:
        raise ValueError({S})
""", {}),
    ("""
with Rethrow({S}):
    with Recorder({S}):
        BODY
        raise {E}({S})
""", {}),
    ("""
try:
    with Unenterable({I}):
        BODY
except RuntimeError as {e}:
    print({e}.args, {e}.__context__)
""", {}),
    ("""
@managed({S})
def {f}({p}):
    INNER T:p
    return {T} + {p}
{t} = {f}({T})
""", {"t": "T", "f": "FN"}),
    # classes made in the function
    ("""
class {cls}(Box):
    kept = {I}
    def value_or(self, {p}):
        return super().value_or({p}) + self.kept
    def bump(self, by=2):
        INNER I:by
        return super().bump(by) + __class__.kept
{u} = {cls}({I}, {T})
""", {"u": "U"}),
    ("""
class {cls}:
    {n} = {I}
    {l} = [{i} + 1 for {i} in range({n} % 4)]
    def __init__(self, **given):
        vars(self).update(given)
    def __bool__(self):
        print('asked')
        return {B}
    def __getattr__(self, name):
        return len(name)
{o} = {cls}(a={I}, b={T})
if {o}:
    BODY
{k} = {o}.nothing + {o}.a
""", {"k": "I"}),
    ("""
@dataclasses.dataclass
class {cls}(Record):
    extra: int = {I}
    def __post_init__(self):
        self.n = self.n + self.extra
        INNER
{r} = {cls}({I}, {T})
""", {"r": "R"}),
    # coroutines
    ("""
async def {f}({p}):
    {q} = await later({p} + {I})
    async with Later() as {k}:
        INNER T:p T:q
    return {q} + {T}
{t} = drive({f}({T}))
""", {"t": "T"}),
    ("""
async def {f}({p}):
    {s} = 0
    async for {q} in steps({p}, {I} % 3):
        {s} = {s} + {q}
    return [{q} + {s} async for {q} in steps({p}, 2)]
{l} = drive({f}({T}))
""", {"l": "LT"}),
    # functions
    ("""
{f} = smelt.compile(lambda {p}: {T} + {p}, backend='eager')
{t} = {f}({T}) + {f}({T})
""", {"t": "T", "f": "FN"}),
    ("""
def {f}({p}, {a}={I}, *{r}, {k}={F}, **{n}):
    INNER T:p I:a F:k
    return {p} * {a} + {k} + len({r}) - len({n})
{t} = {f}({T}, *{L}, **{D})
""", {"t": "T"}),
    ("""
def {f}({p}, {n}):
    if {n} <= 0:
        return {p}
    INNER T:p
    return {f}({p} + 1, {n} - 1)
{t} = {f}({T}, {I} % 4)
""", {"t": "T"}),
    ("""
class {cls}(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.ones(3))
    def forward(self, {p}):
        self.register_buffer('seen', {p}.detach().sum())
        INNER T:p
        return {p} * self.a
{m} = {cls}()
{t} = {m}({T})
{u} = {m}.seen
""", {"m": "M", "t": "T", "u": "T"}),
    # sizes that differ between calls, and sizes that only values tell
    ("""
for {i} in range({V}.shape[0]):
    {t} = {V!}[:{i} + 1].sum()
    LOOP T:t I:i
""", {}),
    ("""
{k} = int(({V} > {F}).sum())
if {k} > {I}:
    BODY I:k
{w} = {V}[:{k}]
""", {"k": "I", "w": "V"}),
    ("""
for {i} in ({V} > {F}).nonzero().flatten().tolist():
    LOOP I:i
""", {}),
    ("""
{h} = {T!}.register_hook(lambda g: g * 2) if {T!}.requires_grad else None
BODY
if {h} is not None:
    {h}.remove()
""", {}),
)  # fmt: skip

MATCHES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("I", ("0 | 1", "int(k) if k > 2", "-1", "Color.RED.value", "k")),
    ("P", ("(0, k)", "(k, 2)", "[k, *_]", "(int(), int()) as k", "_")),
    ("D", ("{'a': k}", "{'b': k, **rest}", "{'a': 1 | 2 as k, 'b': _}", "{}", "_")),
    ("DT", ("{'a': torch.Tensor(shape=(k,))}", "{'x': k, **rest}", "{}", "_")),
    ("U", ("Child(n=k)", "Box(n=1)", "Box(items=[k, *rest])", "Box(n=k, t=None)", "Slotted() | Child() as k", "_")),
    ("N", ("Point(0, k)", "Point(x=k)", "_")),
    ("S", ("'a'", "'b' | 'key'", "str(k)", "_")),
    ("L", ("[]", "[k]", "[1, *_, k]", "[k, *rest]", "_")),
    ("R", ("Record(1, k)", "Record(n=k, items=[*_])", "Record(items=[k, *rest])", "_")),
    ("T", ("torch.Tensor(shape=(2, k))", "torch.Tensor(requires_grad=True)", "torch.Tensor(dtype=k)", "_")),
    ("Q", ("[k]", "[k, *rest]", "_")),
    ("LT", ("[k]", "[torch.Tensor() as k, *rest]", "[]", "_")),
    ("DD", ("{'a': [k, *_]}", "{'missing': k}", "_")),
)
