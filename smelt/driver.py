"""Runs the pipeline for a captured graph: backend, report, builds in threads, programs that are compiled on demand.

The passes and their order are in `pipeline.py`.
"""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils import _pytree as pytree

from smelt.abi.rendered import Rendered
from smelt.autograd.call.absent_tangents import Backward
from smelt.autograd.call.calling_convention import wrap
from smelt.autograd.call.double_backward import DoubleBackward
from smelt.autograd.call.graph_pieces import Pieces
from smelt.autograd.eager import compile_aot_eager, eager_program
from smelt.autograd.trace.joint import Joint
from smelt.backends import user_backend
from smelt.base.collection import collect_young_objects, no_collection
from smelt.base.default_device import name_devices, without_default_device
from smelt.base.errors import CompileError, SmeltWarning
from smelt.base.malloc import give_back
from smelt.base.options import Options, environment
from smelt.base.precision import products_round_to_tf32
from smelt.base.process_state import preserving
from smelt.base.report import Report, saved_report
from smelt.base.stats import count, count_named
from smelt.base.torch_private import ddp_bucket_bytes
from smelt.capture.core.signals import raise_if_signalled
from smelt.capture.guards.kinds import variants_by_kind
from smelt.capture.tensors.ambient import outside_anomaly_mode, outside_inference_mode, outside_saved_tensor_hooks
from smelt.checked import backward_boundary, boundary
from smelt.codegen.multi_part_host import render_multi_part_host
from smelt.gpu import Recordings, old_values, recorded_alone
from smelt.graph.ir.meta import TensorMeta
from smelt.graph.ir.module import dismantle
from smelt.graph.ir.printer import print_graph
from smelt.graph.ir.repro_script import describe_inputs, error_of, repro_script, settings_of
from smelt.graph.nodes.checkpoints import with_checkpoints
from smelt.graph.nodes.cut_points import boundaries, in_pieces
from smelt.graph.nodes.eager_call import EagerCall
from smelt.graph.nodes.modes import leaving_regions
from smelt.graph.verify import verified
from smelt.passes import PassRunner, timed
from smelt.pipeline import to_emptied, to_halves, to_parts, to_prims, to_program
from smelt.program import Program, load, prepare
from smelt.runtime.build import build, flags_for
from smelt.runtime.compiler_process import CompilerGroup
from smelt.shapes.size import Size, Symbol, symbols
from smelt.shapes.unbacked import at_least, may_be_empty
from smelt.target import Target

GRAPHS_OF_HALVES = ("3_", "4_", "5_")
"""Prefixes of the names of the report texts that show graphs, loops and schedules of forward and backward."""


def compile_graph(
    gm: fx.GraphModule, example_inputs: Sequence[torch.Tensor], report: Report, options: Options
) -> Callable[..., Any]:
    """Compile a captured torch-level graph by the backend of `options`; returns a callable over the same flat inputs.

    Raises:
        SmeltError: a stage failed; capture decides between eager and an error.
    """
    report.add("1_torch.py", lambda: print_graph(gm))
    if in_pieces(gm.graph, options.backend):
        return compile_pieces(gm, report, options)
    report.add(REPRO, functools.partial(_script, gm, example_inputs, report, options))
    with no_collection():
        compiled = (beside or compile_whole)(gm, example_inputs, report, options)
        report.forget()
    return compiled


REPRO = "repro.py"
"""The name of the report file that `smelt repro` runs."""

beside: Callable[..., Callable[..., Any]] | None = None
"""A function that `compile_graph` calls in place of `compile_whole`; `smelt check` sets one that calls `compile_whole`
and compares each graph with eager. None: `compile_whole` is called."""


def _script(gm: fx.GraphModule, example_inputs: Sequence[torch.Tensor], report: Report, options: Options) -> str:
    inputs = describe_inputs(example_inputs, gm)
    return repro_script(gm, inputs, settings_of(options), report.name, error_of(report.error))


def compile_whole(
    gm: fx.GraphModule, example_inputs: Sequence[torch.Tensor], report: Report, options: Options
) -> Callable[..., Any]:
    """Compile a graph without branches or eager boundaries."""
    if options.backend in ("aot_eager", "smelt"):
        name_devices(gm)
    match options.backend:
        case "eager":
            return leaving_regions(gm, with_checkpoints(gm).forward)
        case "aot_eager":
            return compile_aot_eager(gm, example_inputs, options)
        case "smelt" if _is_without_memory(gm):
            return compile_aot_eager(gm, example_inputs, options)
        case "smelt":
            return compile_smelt(gm, example_inputs, report, options)
        case name:
            return leaving_regions(gm, user_backend(name)(gm, list(example_inputs)))


def _is_without_memory(gm: fx.GraphModule) -> bool:
    """Whether the graph has tensors of the meta device, which have shapes and no values to compute."""
    metas = pytree.tree_leaves([node.meta.get("val") for node in gm.graph.nodes])
    return any(isinstance(val, TensorMeta) and val.device.type == "meta" for val in metas)


def compile_pieces(gm: fx.GraphModule, parent_report: Report, options: Options) -> Callable[..., Any]:
    """Cut a graph at its branches on values and its eager boundaries; each piece is compiled when it first runs."""

    def compile_piece(piece: fx.GraphModule, inputs: Sequence[Any], name: str) -> Callable[..., Any]:
        report = parent_report.child(name)
        try:
            with outside_anomaly_mode(), outside_inference_mode(), outside_saved_tensor_hooks():
                return compile_graph(piece, inputs, report, options)
        except Exception as error:
            _fall_back(name, "this part of the graph", error, options, report)
            return piece.forward

    if options.backend == "smelt":
        calls = (node.target for node in boundaries(gm.graph) if isinstance(node.target, EagerCall))
        count_named("extern_ops", Counter(name for call in calls for name in call.operators))
    return Pieces(gm.graph, parent_report.name, compile_piece, variants_by_kind).run


@without_default_device()
def compile_smelt(
    gm: fx.GraphModule, example_inputs: Sequence[torch.Tensor], report: Report, options: Options
) -> Callable[..., Any]:
    """Compile a graph by the backend "smelt": differentiate, decompose, split, lower, fuse, generate, build."""
    joint, device, halves = halves_of(gm, example_inputs, report, options)
    recordings = Recordings(joint, device, report, options)
    with timed("load", report):
        programs: list[Program] = [load(program, options, recordings.record_part) for program in halves.programs]
    programs = recordings.of_graph(programs, [bool(each.parts) for each in halves.programs], halves.old)
    programs = [check(program) for check, program in zip(halves.checks, programs, strict=True)]
    double_backward = DoubleBackward(
        gm, joint, lambda graph, given: compile_smelt(graph, given, report.derivative(), options)
    )
    if halves.backward is None:
        return wrap(joint, programs[0], None, double_backward)
    count = len(joint.differentiable)
    late = functools.partial(compile_late, count=count, device=device, report=report, options=options)
    known = {halves.absent: programs[1]} if len(programs) > 1 else {}
    return wrap(joint, programs[0], Backward(halves.backward, late, known), double_backward)


@without_default_device()
def halves_of(
    gm: fx.GraphModule, example_inputs: Sequence[torch.Tensor], report: Report, options: Options
) -> tuple[Joint, torch.device | None, Halves]:
    """Returns the joint graph, the device of its kernels if these are Triton kernels (else None), and its compiled
    halves.
    """
    joint, prims = to_prims(gm, example_inputs, options, PassRunner(report))
    device = triton_device(prims, options)
    at_once = device is not None and device.type == "cuda"  # recordings of one graph share memory
    return joint, device, _render_halves(joint, prims, options, report, at_once)


class Halves(NamedTuple):
    """A compiled joint graph, without its intermediate graphs.

    Attributes:
        programs: the programs of forward and, if compiled, backward as source text.
        backward: the graph of the backward; None if no gradients are computed.
        absent: positions of the tangents that the backward's program does not take.
        checks: wrappers that check inputs and results of the programs.
        old: positions of forward results that may share memory with an input that the forward writes
            (`gpu.old_values`).
    """

    programs: list[Rendered]
    backward: fx.GraphModule | None
    absent: tuple[int, ...]
    checks: list[Callable[[Program], Program]]
    old: list[int]


def _render_halves(joint: Joint, prims: fx.GraphModule, options: Options, report: Report, at_once: bool) -> Halves:
    """Returns the programs of a joint graph. Intermediate graphs are released when it returns.

    Args:
        at_once: compile a backward now even if it is unknown which results will have gradients.
    """
    run = PassRunner(report)
    report.add("3_prims.py", functools.partial(print_graph, prims))
    forward, backward, likely, absent = to_halves(prims, joint, at_once, options, run)
    halves = {"forward": forward} if likely is None else {"forward": forward, "backward": likely}
    shown = [forward] if backward is None else [forward, backward]
    # The halves are copies: release the joint graph before kernels are made.
    report.instead("3_prims.py", lambda: "\n".join(map(print_graph, shown)))
    if prims not in (forward, backward, likely):
        dismantle(prims.graph)
    del prims
    new_values = range(joint.num_outputs, joint.num_forward)
    checks = [boundary(f"{report.name} forward", forward.graph, new_values)]
    if likely is not None:
        checks.append(backward_boundary(f"{report.name} backward", likely.graph))
    updates = joint.updates()
    old = old_values(forward.graph, updates)
    programs = render_and_build(halves, options, report, updates)
    # Only source texts are needed from here on. Loops and schedules are as large as their graphs.
    report.forget(GRAPHS_OF_HALVES)
    for half, program in zip(halves.values(), programs, strict=True):
        if half is not backward and program.by_operators is None:
            dismantle(half.graph)
    return Halves(programs, backward, absent, checks, old)


def _fall_back(name: str, what: str, error: Exception, options: Options, report: Report | None = None) -> None:
    """Count and report that a graph or program runs in eager because it could not be compiled.

    Args:
        report: the report to save beside the cache; None: no report is saved.

    Raises:
        Exception: `error` itself, under SMELT_STRICT or `fullgraph`.
    """
    raise_if_signalled(error)
    if environment().strict or options.fullgraph:
        raise error
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        give_back()
    count("fallbacks")
    saved = f"\n  {saved_report(report, error)}" if report is not None else ""
    warnings.warn(SmeltWarning(f"compiling {name} failed: {error}\n  {what} runs in eager{saved}"), stacklevel=3)


def compile_late(
    graph: fx.GraphModule, count: int, device: torch.device | None, report: Report, options: Options
) -> Program:
    """Compile a backward that is first needed during a training step; if that fails, it runs operator by operator.

    Args:
        count: number of results that may have gradients.
    """
    return preserving(_compile_or_step, graph, count, device, report, options)


def _compile_or_step(
    graph: fx.GraphModule, count: int, device: torch.device | None, report: Report, options: Options
) -> Program:
    given = sum(node.op == "placeholder" and node.name.startswith("tangents_") for node in graph.graph.nodes)
    name = "backward" if given == count else "backward_less"
    try:
        return compile_backward(graph, name, device, report, options)
    except Exception as error:
        _fall_back(f"another backward of {report.name}", "it", error, options)
        return eager_program(graph)


@without_default_device()
def compile_backward(
    graph: fx.GraphModule, name: str, device: torch.device | None, report: Report, options: Options
) -> Program:
    """Compile the backward for a set of used results that has no backward program yet."""
    with outside_inference_mode():
        (rendered,) = render_and_build({name: graph}, options, report)
        with timed("load", report):
            program = load(rendered, options)
    report.forget()
    check = backward_boundary(f"{report.name} backward", verified(graph, "prims").graph)
    return check(recorded_alone(program, device, report, options) if device is not None else program)


def render_and_build(
    halves: Mapping[str, fx.GraphModule], options: Options, report: Report, updates: Mapping[int, str] | None = None
) -> list[Rendered]:
    """Render programs as source text and build their kernels into the store, each while the next one is rendered.

    Args:
        updates: the updates of inputs by the forward program, see `schedule`.
    """
    rendered: list[Rendered] = []
    building: list[Future[object]] = []
    with ThreadPoolExecutor(len(halves), "smelt-build") as pool, CompilerGroup():
        for name, half in halves.items():
            rendered.append(render(half, options, report, name, updates if name == "forward" else None))
            work = functools.partial(copy_context().run, build, rendered[-1].cpp_sources, flags_for(options))
            try:
                building.append(pool.submit(work))
            except RuntimeError:  # the main thread has ended; another thread or an exit handler goes on
                work()
        with timed("load", report):
            for each in rendered:
                prepare(each)
        with timed("collect", report):
            collect_young_objects()
        with timed("build", report):  # wait for unfinished builds
            for future in building:
                future.result()
    return rendered


def triton_device(part: fx.GraphModule, options: Options) -> torch.device | None:
    """Returns the device of a graph whose kernels are Triton kernels; None if they are C++ kernels for a CPU.

    Raises:
        CompileError: the graph's tensors are on several GPUs, or on a device for which no kernels can be generated.
    """
    metas = [n.meta["val"] for n in part.graph.nodes if isinstance(n.meta.get("val"), TensorMeta)]
    devices = {m.device for m in metas if m.device.type != "cpu"}
    if len(devices) > 1 or any(d.type != "cuda" for d in devices):
        raise CompileError(
            f"tensors on {', '.join(sorted(map(str, devices)))} in one graph",
            why="kernels are generated for a CPU or one CUDA device",
            hint='backend="aot_eager" runs there; or move the model and its inputs to one device',
        )
    if devices:
        return devices.pop()
    return torch.device("cpu") if options.target == "triton" else None


def compile_program(part: fx.GraphModule, options: Options, report: Report, name: str = "forward") -> Program:
    """Compile one prim graph into a program that is ready to run."""
    return load(render(part, options, report, name), options)


def render(
    part: fx.GraphModule, options: Options, report: Report, name: str, updates: Mapping[int, str] | None = None
) -> Rendered:
    """Render forward or backward as source text, split into parts at reads of numbers and at changes of device."""
    chain = to_parts(part, PassRunner(report, name))
    if chain is None:
        return render_part(part, options, report, name, updates)
    modules = [p.module for p in chain.parts if p.module is not None]
    kept = chain.in_place_updates(updates or {})
    rendered = [render_part(m, options, report, f"{name}{i}", kept.get(i)) for i, m in enumerate(modules)]
    whole = render_multi_part_host(chain, rendered)
    report.add(f"7_{name}_host.py", lambda: whole.host_source)
    return whole


def render_part(
    part: fx.GraphModule, options: Options, report: Report, name: str, updates: Mapping[int, str] | None = None
) -> Rendered:
    """Render one part: loops, schedule, kernels, host program."""
    device = triton_device(part, options)
    counts = [n.meta["val"] for n in part.graph.nodes if n.op == "placeholder" and isinstance(n.meta["val"], Size)]
    empty = {i - len(counts): s for i, n in enumerate(counts) for s in symbols(n) if may_be_empty(s)}
    in_stages = 0 if empty else _stage_bytes(part, options, name)
    may_split = device is not None and _may_split_products(device, options)
    target = Target(device, updates, _caller_owned(part, name), may_split, in_stages)
    with at_least(1, list(empty.values())):
        rendered = to_program(part, target, options, PassRunner(report, name))
    if empty:
        rendered.counts = tuple(empty)
        rendered.empty = lambda zeros: compile_emptied(part, [empty[i] for i in zeros], options, report, name, updates)
        rendered.by_operators = functools.partial(eager_program, part)
    return rendered


@without_default_device()
def compile_emptied(
    part: fx.GraphModule,
    zeros: Sequence[Symbol],
    options: Options,
    report: Report,
    name: str,
    updates: Mapping[int, str] | None,
) -> Program | None:
    """Returns the program of `part` for calls in which the unbacked sizes `zeros` are 0; None if it cannot be
    compiled.
    """
    try:
        with outside_inference_mode():
            own = report.child(f"{report.name}_empty")
            return load(render_part(to_emptied(part, zeros, PassRunner(own)), options, own, name, updates), options)
    except ZeroDivisionError:  # a size is divided by one of `zeros`: operators in eager raise the right error
        return None
    except Exception as error:
        _fall_back(f"{report.name} without elements", "it", error, options)
        return None


def _caller_owned(part: fx.GraphModule, name: str) -> Container[int]:
    """Returns the positions of inputs whose buffers outlive the call: all inputs of a forward, the marked inputs of a
    backward.
    """
    inputs = [node for node in part.graph.nodes if node.op == "placeholder"]
    if not name.startswith("backward"):
        return range(len(inputs))
    return {at for at, node in enumerate(inputs) if "caller_owned" in node.meta}


STAGES = 16
"""Maximum number of stages of a backward when `options` sets no stage size: each stage costs an autograd node."""


def _stage_bytes(part: fx.GraphModule, options: Options, name: str) -> int:
    """Returns the bytes of gradients in one stage of a backward, which returns them before it continues; 0: only one
    stage.
    """
    if name != "backward":  # a host program of several parts waits for all results of each part
        return 0
    if options.stages >= 0:
        return options.stages
    wanted = ddp_bucket_bytes()
    made = part.graph.output_node().meta["val"]
    total = sum(int(m.nbytes) for m in made if isinstance(m, TensorMeta) and not isinstance(m.nbytes, Size))
    return max(wanted, total // STAGES) if wanted else 0


def _may_split_products(device: torch.device, options: Options) -> bool:
    """Whether float32 products may be split into TF32 products if a measurement shows that this is faster.

    The result is False without a GPU, and under deterministic algorithms, since measurements may differ between runs.
    """
    if device.type != "cuda" or options.gemm != "auto" or torch.are_deterministic_algorithms_enabled():
        return False
    return not products_round_to_tf32()
