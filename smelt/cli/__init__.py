"""The `smelt` command: verify, bench, demo, ops."""
