"""Joint graph in; forward and backward graphs out. Decides which values are saved and which are recomputed."""
