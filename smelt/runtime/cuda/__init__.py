"""The GPU without Triton: driver, events, streams, and programs that are recorded once and replayed."""
