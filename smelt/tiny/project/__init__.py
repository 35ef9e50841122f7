"""Projects: a graph and a scheme in, a folder out that builds for a board, trains there and keeps what it learnt."""
