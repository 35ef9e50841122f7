"""The first step of a model from an artefact, beside eager's."""
