"""Opcode tables of the supported CPython versions: the decoder and handler of each opcode.

`decoding` loads the table of the running version. The handlers of stack, variables and jumps are in
`python.stack_opcodes`, because branches use them, too.
"""
