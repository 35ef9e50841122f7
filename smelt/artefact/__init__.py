"""Artefacts: compiled programs as files, which a fresh process loads without capture, tracing or a compiler.

    container   the file: a header, the contents as data, libraries and tensors, and a checksum over all of it
    machine     where an artefact may be used: versions, processor, OpenMP runtime
    codec       values of the plan of a call as JSON, and back: a closed list of kinds, never pickle
    references  objects of the program by name, and marks by which another process recognizes them
    guards      guards as data
    programs    the programs of a graph as data: texts, libraries, the plan of a call
    artefact    `smelt.load`, saving, and the compiled callable that an artefact gives for a model or function
    owner       answers the frame hook for functions that an artefact was applied to

`smelt.ahead` writes them: it needs the whole compiler.
"""
