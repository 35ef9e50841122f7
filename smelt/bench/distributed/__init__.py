"""Data-parallel, sharded and tensor-parallel training on several processes: `smelt bench distributed`."""
