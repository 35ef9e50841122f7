"""Measures eager, torch.compile and smelt side by side: cold start, steps, memory, accuracy."""
