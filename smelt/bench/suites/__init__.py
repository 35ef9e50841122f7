"""The 163 models of the benchmark: entries, builders and inputs."""
