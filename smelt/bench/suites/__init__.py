"""The 163 models of the benchmark: what they are, how they are built, what goes in."""
