"""What each opcode of each supported CPython means: the tables that `decoding` gives the interpreter.

The opcodes of stack, variables and jumps are in `python.stack_opcodes`, which branches use too.
"""
