"""Artefacts: files with compiled programs, which a new process loads without capture, tracing or a C++ compiler.

    container   the file format: a header, the contents as data, libraries and tensors, and a checksum over the file
    machine     checks the versions, processor and OpenMP runtime that an artefact needs
    codec       encodes values of the plan of a call as JSON and decodes them: a closed list of kinds, never pickle
    references  names objects of the program, and describes them by marks, which another process compares
    guards      encodes and decodes guards
    programs    encodes and decodes the programs of a graph: texts, libraries, the plan of a call
    artefact    `smelt.load`, saving, and the compiled callable of an artefact for a model or function
    owner       gives the frame hook the compiled versions of a function to which an artefact was applied

`smelt.ahead` makes artefacts; that module needs the whole compiler.
"""
