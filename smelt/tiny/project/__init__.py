"""Projects: from a graph and a scheme, a folder whose program can be built for a board, trains there and stores what it
has learnt.
"""
