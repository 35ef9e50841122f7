"""`smelt repro`, `smelt minify` and `smelt check`: reproduce and reduce failures, compare programs with eager."""
