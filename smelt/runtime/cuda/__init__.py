"""A GPU without Triton: the driver, events, streams, and programs that are recorded once and replayed."""
