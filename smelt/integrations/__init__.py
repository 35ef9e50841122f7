"""Integrations with other libraries (Accelerate, Lightning, `torch.compile`); all of them call `smelt.compile`."""
