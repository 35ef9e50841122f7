"""`smelt demo`: two real trainings, eager and compiled side by side, with a report at the end."""
