"""A census of a library: builds a small model of each architecture and compares its captured forward with eager's."""
