"""Models of the benchmark suites that have no package: one small module for each, written from its paper."""
