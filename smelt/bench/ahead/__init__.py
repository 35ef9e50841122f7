"""Measures the first step of a model that is loaded from an artefact, and eager's first step."""
