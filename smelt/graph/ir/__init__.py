"""Elements of graphs: metadata of values, symbolic sizes, storages and views, schemas, modules, printing.

Every other folder of `graph`, and every stage, builds on this one.
"""
