"""A census of a library: every architecture built small, its forward captured and compared with eager, exactly."""
