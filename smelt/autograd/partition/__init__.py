"""Joint graph in; forward and backward graphs out: what is saved for the backward and what is recomputed."""
