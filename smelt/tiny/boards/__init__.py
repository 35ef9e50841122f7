"""Boards: the compiler, linker script and start-up code that a project needs, and how an emulator runs it."""
