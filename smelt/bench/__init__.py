"""Measures eager, torch.compile and smelt on the same models: cold start, step time, memory, accuracy."""
