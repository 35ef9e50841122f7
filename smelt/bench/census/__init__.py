"""A census of a library: every architecture is built small; its captured forward must equal eager's exactly."""
