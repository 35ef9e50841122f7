"""First stage: a running Python frame in; a torch-level graph, guards and residual Python out.

`compiled` makes the callable. `session` is called by the frame hook: it interprets the frame (`interpreter`), compiles
its graph, and installs the guards and the residual code as an entry of `cache`. Each folder uses those above it:

    native        the frame hook, guards and resumption, in C (the module `_native`)
    core          values, sources, frames, decoded bytecode, the registry in which the others enter their handlers
    guards        what a graph depends on: guards, symbols for sizes, why a guard failed
    python        objects, attributes, containers and writes of the program, as Python does them
    tensors       trace tensors, calls of torch as graph nodes, values that are read from tensors
    prologue      what Python computes without tensors before the graph runs
    calls         calls by kind of callable: functions, classes, builtins
    control_flow  branches on tensors' values
    torch         modules, hooks, autograd functions, optimizers, transforms, Triton kernels of the program
    opcodes       what each opcode of each CPython version means
    residual      the Python that replaces the frame, or resumes it where the graph broke
"""
