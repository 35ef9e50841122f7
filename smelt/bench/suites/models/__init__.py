"""Own models of the benchmark suites: one small module each, written from its paper."""
