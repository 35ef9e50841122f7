"""What programs are made of: expressions by type, statements, and the definitions that they use.

`{T}` stands for an expression of type T, `{T!}` for a variable of it. The types: T tensor that broadcasts with (2, 3),
I int, F float, B bool, S str, L list of ints, LT list of tensors, D dict of ints, DT dict of tensors, X set, P pair of
ints, Q deque, DD defaultdict of lists, C Counter, O OrderedDict, N namedtuple Point, R dataclass Record, U object Box,
M module, FN function of a tensor. `{v}` is a fresh name.
"""

from __future__ import annotations

LEAVES = {
    "T": ("torch.ones(2, 3)", "torch.arange(3.0)", "torch.full((2, 3), 0.5)", "torch.tensor(2.0)", "torch.zeros(2, 3)"),
    "I": ("0", "1", "2", "3", "-1", "7"),
    "F": ("0.5", "1.0", "-0.0", "2.5", "1e-3"),
    "B": ("True", "False"),
    "S": ("'a'", "'b'", "'key'", "''"),
    "L": ("[]", "[1, 2]", "[3, 1, 2]", "list(range(4))"),
    "LT": ("[torch.ones(2, 3)]", "[]", "[torch.zeros(3), torch.ones(3)]"),
    "D": ("{}", "{'a': 1}", "{'b': 2, 'a': 3}", "dict(a=1, key=2)"),
    "DT": ("{'a': torch.ones(3)}", "{}"),
    "X": ("set()", "{1, 2}", "{3}"),
    "P": ("(1, 2)", "(0, -1)"),
    "Q": ("collections.deque([1, 2], maxlen=3)", "collections.deque()"),
    "DD": ("collections.defaultdict(list)",),
    "C": ("collections.Counter('abca')", "collections.Counter()"),
    "O": ("collections.OrderedDict(a=1, b=2)", "collections.OrderedDict()"),
    "N": ("Point(1, torch.ones(3))",),
    "R": ("Record(1, torch.ones(3))", "Record(2, torch.zeros(3), [1])"),
    "U": ("Box(1)", "Box(2, torch.ones(3))", "Child(3)"),
    "M": ("MODULE",),
    "FN": ("torch.sin", "(lambda t: t + 1)", "helper", "scaled(2.0)"),
}

GLOBALS = {"I": ("G_COUNT", "settings.size"), "L": ("G_LIST",), "D": ("G_DICT",), "U": ("G_BOX", "BOXES[0]"),
           "T": ("G_TENSOR",), "F": ("Box.shared", "settings.rate"), "S": ("Box.label",)}  # fmt: skip

EXPRESSIONS = {
    "T": (
        "{T} + {T}", "{T} * {F}", "{T} - {I}", "torch.sin({T})", "{T}.relu()", "({T} > {F}).float()", "-{T}",
        "torch.where({T} > 0, {T}, {T})", "{T}.sum()", "{T}.mean(-1, keepdim=True)", "torch.maximum({T}, {T})",
        "F.relu({T})", "{FN}({T})", "{M!}({T})", "{N}.y", "{R}.t", "{U!}.value_or({T})", "{U!}(({T}))",
        "({T} if {B} else {T})", "torch.stack([{T} + torch.zeros(2, 3), {T} + torch.zeros(2, 3)]).sum(0)",
        "sum({LT}, {T})", "({LT} or [{T}])[0]", "{DT}.get({S}, {T})", "functools.reduce(operator.add, {LT}, {T})",
        "({v} := {T})", "{T!}", "{T!}.detach()", "torch.rand_like({T})", "F.dropout({T}, 0.5)", "{T}.clone()",
        "torch.tensor({L}, dtype=torch.float32).sum()", "{T!}.view_as({T!})", "{T} / ({I} or 1)", "torch.zeros_like({T})",
        "helper({T}, {F})", "helper({T}, scale={F})", "helper(*[{T}], **{{'shift': {I}}})", "doubled({T})", "torch.abs({T})",
        "vararg({T}, {T}, key={I})", "next(numbers({T}), {T})", "functools.partial(helper, scale={F})({T})",
        "torch.cat([{T}.reshape(-1)[:1], {T}.reshape(-1)[:1]]).prod()", "{T}.max()", "{T}.expand(2, 3)", "{T}[...]",
        "torch.ones({I}.__abs__() % 3 + 1, 3).sum(0)", "{T}.to(torch.float64).float()", "method_user({U}, {T})",
        "{T} ** 2", "{I} + {T}", "{F} * {T}", "{T} @ torch.ones(3, 3)", "recurse({T}, {I} % 4)", "{U!}[{T}]",
        "torch.add({T}, {T}, alpha={I})", "operator.itemgetter(0)([{T}])", "{T}.add({F}).mul_(2)", "(({T}) == {T}).all()",
        "max({T}.sum(), {T}.sum())" , "broken({T})", "G_BOX.value_or({T})", "Box.make({T}).value_or({T})",
        "Box.twice({T})", "{T!}.data", "torch.randn(2, 3)", "torch.nan_to_num({T})", "{T}.unsqueeze(0).squeeze(0)",
    ),
    "I": (
        "{I} + {I}", "{I} - {I}", "{I} * {I}", "{I} % ({I} or 3)", "len({L})", "len({D})", "{L!}[{I} % len({L!})]", "sum({L})",
        "max({I}, {I})", "abs({I})", "{D}.get({S}, {I})", "{N}.x", "{R}.n", "{U!}.n", "{T}.dim()", "int({F})", "{P}[0]",
        "({I} if {B} else {I})", "{T!}.shape[-1]", "({v} := {I})", "len({S})", "{C}[{S}]", "{O}.get({S}, 0)", "int({B})",
        "{L}.count({I})", "-{I}", "hash({P}) % 5", "cached({I} % 3)", "{U!}.area", "functools.reduce(operator.mul, {L}, 1)",
        "next(iter({L}), {I})", "len({X})", "sum(i for i in {L} if i > {I})", "{I} // ({I} or 1)", "~{I}", "{I} & 3",
        "ord({S}[0]) if {S!} else 0", "divmod({I}, 3)[1]", "math.gcd({I}, 6)", "{Q}.maxlen or {I}", "len({DD}[{S}])",
        "counter()", "bool({T!}.requires_grad) + {I}", "{T}.numel()", "operator.attrgetter('n')({U})", "G_COUNT",
        "min([{I}, {I}], key=abs)", "Color.RED.value", "int({S!} == 'a')", "getattr({U}, 'missing', {I})", "bisect.bisect([1, 3], {I})",
        "(lambda *a, k={I}: len(a) + k)(*{L})", "{I} ** 2 % 11", "round({F} * 2 % 5)", "tally({I}, step={I})", "len(vars({U}))",
    ),
    "F": (
        "{F} + {F}", "{F} * {I}", "math.sqrt(abs({F}))", "float({I})", "{I} / 2", "round({F}, 2)", "min({F}, {F})", "{F} / ({F} or 1.0)",
        "math.floor({F}) + 0.5", "({F} if {B} else {F})", "-{F}", "abs({F})", "Box.shared", "math.fmod({F}, 2.0)", "float('inf') * 0",
        "{T}.sum().item()", "float({T}.mean())", "sum([{F}, {F}])", "math.pi", "numpy.float32({F}).item()",
    ),
    "B": (
        "{I} > {I}", "{F} < {F}", "{I} in {L}", "{S} in {D}", "not {B}", "{B} and {B}", "{B} or {B}", "isinstance({U}, Child)",
        "{I} == {I}", "{T!}.dim() == 2", "bool({L})", "{S} == {S}", "{T!} is {T!}", "{U!} is {U!}", "any(i > 1 for i in {L})",
        "all({L})", "{I} < {I} <= {I}", "{L!} is {L!}", "hasattr({U}, 'extra')", "callable({FN})", "{I} not in {X}", "{P} < {P}",
        "{L} == {L}", "{U} == {U}", "{R} == Record(1, None)", "{S}.startswith({S})", "{T!}.requires_grad", "issubclass(Child, Box)",
        "(({v} := {I}) > 1)", "{X} <= {X}", "bool({T}.sum() > 0)", "torch.is_grad_enabled()", "{D!} is {D!}", "Color.RED is Color(1)",
    ),
    "S": (
        "{S} + {S}", "f'''{{ {I} }}-{{ {S} }}'''", "str({I})", "f'''{{ {F}:.2f}}'''", "{S}.upper()", "f'''{{ {I}:>4}}|{{ {B}!r}}'''", "'%d %s' % ({I}, {S})",
        "','.join(map(str, {L}))", "{S} * 2", "repr({L})", "'{{}} {{k}}'.format({I}, k={S})", "{S}.strip().title()", "type({U}).__name__",
        "next(iter({D}), {S})", "sorted({D}, reverse=True)[0] if {D!} else 'z'", "str({T!}.dtype)", "{S}[::-1]", "Color.RED.name",
        "repr({P})", "'-'.join(sorted({D}))", "f'''{{ {T!}.shape}}'''", "{S}.replace('a', 'b')", "str({U})", "repr({R}.items)", "f'''{{ {C} }}'''",
    ),
    "L": (
        "[i * 2 for i in {L}]", "[i for i in {L} if i > {I}]", "list(range({I} % 5))", "{L} + {L}", "sorted({L})", "[*{L}, {I}]", "{L}[1:]",
        "list({X})", "list({D}.values())", "list(reversed({L}))", "list(map(abs, {L}))", "[{I}, {I}]", "list(itertools.chain({L}, {L}))",
        "list(itertools.accumulate({L}))", "list(filter(None, {L}))", "[a + b for a, b in zip({L}, {L})]", "[i + j for i in {L} for j in range(2)]",
        "({L} if {B} else {L})", "list({Q})", "{L!}.copy()", "list({P})", "list(itertools.islice(itertools.count({I}), 3))", "{L!}",
        "list(counted({I} % 4))", "{DD!}[{S}]", "[v for k, v in {D}.items()]", "[i if i else {I} for i in {L}]", "list(doubling({L}))",
        "sorted({L}, key=lambda i: -i)", "[n for n, _ in enumerate({L})]", "{R}.items", "[{v} for {v} in {L} if {v} != {I}]", "{L}[::-1]",
        "list(itertools.takewhile(lambda i: i < 3, {L}))", "[len(list(g)) for _, g in itertools.groupby({L})]", "list(dict.fromkeys({L}))",
        "[(lambda i=i: i)() for i in {L}]", "[f() for f in [lambda: i for i in {L}]]", "torch.tensor({L}).tolist()", "{U!}.items",
    ),
    "LT": (
        "[{T}, {T}]", "[t * 2 for t in {LT}]", "{LT} + [{T}]", "[{T}.detach() for _ in range({I} % 3)]", "list({DT}.values())", "{LT!}",
        "[t for t in {LT} if t.dim() == 1]", "list(map(torch.sin, {LT}))", "[*{LT}, {T!}]", "list(({T} + torch.zeros(2, 3)).unbind(0))",
        "list(torch.split({T} + torch.zeros(2, 3), 1))", "[f({T}) for f in [{FN}, {FN}]]", "list(pairs({T}))", "sorted({LT}, key=lambda t: t.dim())",
        "[a + b for a, b in zip({LT}, {LT})]", "list(torch.max({T} + torch.zeros(2, 3), 0))[:1]",
    ),
    "D": (
        "{{k: v + 1 for k, v in {D}.items()}}", "{{**{D}, {S}: {I}}}", "{{{S}: {I}, {S}: {I}}}", "dict(zip('abc', {L}))", "{D} | {D}", "{D!}.copy()",
        "{{str(i): i for i in {L}}}", "dict(sorted({D}.items()))", "({D} if {B} else {D})", "dict({O})", "{D!}", "keywords(a={I}, b={I})",
        "dict({C})", "{{k: {I} for k in {D}}}", "vars(Box({I}))",
    ),
    "DT": ("{{'x': {T}, 'y': {T}}}", "{{k: v * 2 for k, v in {DT}.items()}}", "{DT!}", "{{**{DT}, {S}: {T}}}", "dict(z={T})",
           "{{str(i): t for i, t in enumerate({LT})}}"),
    "X": ("{{i % 3 for i in {L}}}", "set({L})", "{X} | {X}", "{X} & {X}", "{X!}", "{X} - {{{I}}}", "{{{I}, {I}}}", "frozenset({L})"),
    "P": ("({I}, {I})", "tuple({L}[:2])", "{P}[::-1]", "divmod({I}, 3)", "tuple({T!}.shape)", "({I}, *{P}[1:])", "{T!}.shape", "astuple({I})"),
    "Q": ("collections.deque({L}, maxlen=4)", "{Q!}", "collections.deque({L})"),
    "DD": ("collections.defaultdict(list, {{{S}: [{I}]}})", "{DD!}"),
    "C": ("collections.Counter({L})", "collections.Counter({S} + {S})", "{C} + {C}", "{C!}"),
    "O": ("collections.OrderedDict({D})", "collections.OrderedDict(a={I}, z={I})", "{O!}"),
    "N": ("Point({I}, {T})", "{N}._replace(x={I})", "{N!}", "Point(y={T}, x={I})", "Point(*({I}, {T}))", "torch.max({T} + torch.zeros(2, 3), 0) and Point(0, {T})"),
    "R": ("Record({I}, {T})", "Record(n={I}, t={T}, items={L})", "{R!}", "dataclasses.replace({R}, n={I})"),
    "U": ("Box({I})", "Box({I}, {T})", "Child({I})", "{U!}", "({U} if {B} else {U})", "Box.make({T})", "({U} + {U})", "Slotted({I})"),
    "M": ("MODULE", "{M!}"),
    "FN": ("(lambda t: t * {F})", "functools.partial(helper, scale={F})", "scaled({F})", "{FN!}", "adder({T})", "torch.cos", "doubled",
           "{M!}", "{U!}.value_or", "({FN} if {B} else {FN})", "operator.neg", "functools.partial(torch.add, alpha={I})", "Box.twice"),
}  # fmt: skip

STATEMENTS = (
    "{I!} += {I}", "{T!} = {T!} + {T}", "{T!} += {T}", "{L!}.append({I})", "{L!}.extend({L})", "{L!}.insert(0, {I})", "{L!}.pop()",
    "del {L!}[0]", "{L!}[0] = {I}", "{L!}[1:2] = {L}", "{L!}.sort()", "{L!}.reverse()", "{L!} += [{I}]", "{L!}.clear()", "{L!}.remove({I})",
    "{D!}[{S}] = {I}", "{D!}.update({D})", "{D!}.setdefault({S}, {I})", "{D!}.pop({S}, None)", "del {D!}[{S}]", "{D!}.popitem()", "{D!} |= {D}",
    "{D!}[{S}] = {D!}.get({S}, 0) + 1", "{DT!}[{S}] = {T}", "{LT!}.append({T})", "{LT!}[-1] = {T}", "{LT!}.append({T!})", "{X!}.add({I})",
    "{X!}.discard({I})", "{X!} |= {X}", "{X!}.remove({I})", "{Q!}.append({I})", "{Q!}.appendleft({I})", "{Q!}.rotate(1)", "{Q!}.popleft()",
    "{Q!}.extend({L})", "{DD!}[{S}].append({I})", "{DD!}[{S}] += {L}", "{C!}[{S}] += 1", "{C!}.update({S})", "{C!}.subtract({C})",
    "{O!}.move_to_end('a')", "{O!}[{S}] = {I}", "{O!}.popitem(last=False)", "{O!}.update({D})", "{U!}.n += {I}", "{U!}.n = {I}", "{U!}.t = {T}",
    "{U!}.extra = {I}", "setattr({U!}, 'extra', {S})", "del {U!}.extra", "{U!}.area = {I}", "{U!}.bump({I})", "{U!}.items.append({I})",
    "{R!}.n = {I}", "{R!}.items.append({I})", "{R!}.t = {T}", "Box.shared = {F}", "Box.total += {I}", "Box.registry.append({I})",
    "G_LIST.append({I})", "G_DICT[{S}] = {I}", "G_BOX.n += 1", "G_BOX.t = {T}", "G_LIST[:] = {L}", "G_BOX.items = {L}", "G_TENSOR.add_({F})",
    "G_COUNT += {I}", "G_COUNT = {I}", "G_OTHER = {T}", "BOXES.append({U})", "BOXES[0] = {U}", "settings.size = {I}", "settings.rate *= 0.5",
    "print({S}, {I})", "print({L!})", "print({D!}, end=' ')", "print(f'''n={{ {I} }}''', {U!}.n)", "logger.info('seen %s', {S})", "warnings.warn({S} + 'w')",
    "logger.warning({S})", "logger.info('list %s', {L!})", "print({T})", "print({P}, sep='-')", "print({U})",
    "{T!}.add_({F})", "{T!}.mul_({T})", "{T!}[0] = {F}", "{T!}.zero_()", "{T!} *= 2", "{T!}.copy_({T})", "{T!}.view(-1)[0] = {F}", "{T!}[..., 0] += 1",
    "torch.add({T}, {T}, out=torch.empty(0))", "{T!}.fill_({F})", "{T!}.data.mul_(2)", "{T!}.clamp_(min=0)", "{T!}.t_()", "{T!}.unsqueeze_(0)",
    "MODULE.calls += 1", "MODULE.state.add_(1)", "MODULE.history.append({I})", "MODULE.last = {T}", "MODULE.state = MODULE.state * 2", "MODULE.eval()",
    "{T!} = {FN}({T})", "{I!}, {I!} = {I}, {I}", "{I!}, *{L!} = [{I}, *{L}]", "{T!}, {T!} = {T!}, {T!}", "({I!}, {I!}), {S!} = {P}, {S}",
    "smelt.graph_break()", "opaque({T})", "{T!} = opaque({T})", "{F!} = {T}.sum().item()", "{L!} = {T}.flatten().tolist()", "torch.manual_seed({I} % 100)",
    "assert {B}, {S}", "raise ValueError({S})", "raise Oops({I})", "raise KeyError", "_ = 1 // {I}", "{D!}[{S}]", "{T!}.nothing", "{L!}[{I}]",
    "{U!}.nothing", "del {I!}", "torch.ones(2) + torch.ones(3)", "{S!} += {S}", "{S!} = {S}.join([{S}, {S}])", "import math as {v}", "{S!}.missing()",
    "{I!} = {U!}.bump({I})", "{LT!} += [{T}]", "{LT!}.extend(t for t in {LT})", "{I!} = sum(counted({I} % 4))", "{LT!}, {DT!} = [{T}], {{}}",
    "FUNCS.append(lambda t: t + {I!})", "FUNCS.append({FN})", "HOLD['x'] = {T}", "HOLD['x'] = HOLD.get('x', 0) + 1", "HOLD.setdefault('l', []).append({T})",
    "{FN!} = {FN}", "{U!} = {U}", "{N!} = {N}", "{R!} = {R}", "{L!} = {L}", "{D!} = {D}", "{T!} = {T}", "{I!} = {I}", "{F!} = {F}", "{B!} = {B}",
    "{S!} = {S}", "{P!} = {P}", "{X!} = {X}", "{Q!} = {Q}", "{DD!} = {DD}", "{C!} = {C}", "{O!} = {O}", "{LT!} = {LT}", "{DT!} = {DT}",
    "{T!} = {T}", "{T!} = {T}", "{T!} = {T}", "{I!} = {I}", "random.seed({I})", "{F!} = random.random()", "{I!} = numpy.arange(3)[{I} % 3].item()",
    "{U!}.__dict__['extra'] = {I}", "object.__setattr__({U!}, 'n', {I})", "{U!}[{S}] = {I}", "{I!} = len({U!})", "{I!} = {U!}.__class__.total", "{T!}.tag = {I}",
    "{T!}.requires_grad_()", "{I!} = next(STREAM, -1)", "{I!} = next({v})", "{DD!}[{S}] = {L}", "helper.calls = {I}", "{I!} = getattr(helper, 'calls', 0)",
    "{I!} = {L!}.index({I})", "{L!} = [*{L!}, *{L!}]", "{L!}.append(len({L!}))", "{D!} = dict.fromkeys({D}, {I})", "{T!} = torch.cat({LT!})",
)  # fmt: skip

CONTEXTS = (
    "torch.no_grad()", "contextlib.suppress(ValueError)", "contextlib.suppress(Exception)", "Recorder({S})", "Recorder({S}, swallow=True)",
    "managed({S})", "managed({S}) as {S!}", "contextlib.nullcontext({I}) as {I!}", "torch.set_grad_enabled({B})", "torch.enable_grad()",
    "Recorder({S}) as {v}", "Recorder({S}), managed({S})", "restoring({U!}, {I})", "torch.autocast('cpu', dtype=torch.bfloat16)", "contextlib.ExitStack() as {v}",
    "torch.inference_mode(False)", "contextlib.redirect_stdout(io.StringIO()) as {v}", "collecting() as {L!}",
)  # fmt: skip

ITERATED = (
    ("I", "range({I} % 4)"), ("I", "{L}"), ("I", "{L!}"), ("T", "{LT}"), ("I", "enumerate({L})"), ("I", "{X}"), ("I", "reversed({L})"),
    ("S", "{D}"), ("I", "{D}.values()"), ("I", "counted({I} % 4)"), ("T", "({T} + torch.zeros(2, 3))"), ("I", "{Q}"), ("T", "pairs({T})"),
    ("I", "itertools.chain({L}, {L})"), ("I", "iter({L})"), ("I", "(i + 1 for i in {L})"), ("I", "{U!}"), ("FN", "[{FN}, {FN}]"),
    ("I", "map(abs, {L})"), ("U", "[{U}, {U}]"), ("S", "sorted({D})"), ("I", "range(3)"), ("I", "range(2)"), ("I", "doubling({L})"), ("I", "filter(None, {L})"),
    ("S", "{S}"), ("I", "{P}"), ("I", "itertools.islice(STREAM, 2)"), ("FN", "FUNCS"), ("U", "BOXES"),
)  # fmt: skip

ERRORS = (
    "ValueError",
    "Oops",
    "Exception",
    "(KeyError, IndexError)",
    "ZeroDivisionError",
    "ArithmeticError",
    "AttributeError",
    "TypeError",
    "RuntimeError",
)
