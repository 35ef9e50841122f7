"""Of `smelt repro`, `smelt minify` and `smelt check`: failures once more and smaller, programs beside eager."""
