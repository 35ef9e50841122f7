"""A fuzzer of capture: small programs run in eager and compiled, compared in everything a caller can see."""
