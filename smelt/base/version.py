"""The version of smelt: part of every cache key, so that an upgrade never reads an older version's results."""

VERSION = "0.1.0"
