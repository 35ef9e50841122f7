"""Max pooling, products of activations, and concatenation of channels: rules of quantisation, torch, C."""
