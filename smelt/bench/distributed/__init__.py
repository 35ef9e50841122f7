"""`smelt bench distributed`: data-parallel, sharded and tensor-parallel training on several processes."""
