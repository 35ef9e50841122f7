"""A normal distribution squashed by tanh: actions of soft actor-critic (Haarnoja et al., 2018, appendix C) and DrQ."""

from __future__ import annotations

from torch import Tensor
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform


class SquashedNormal(TransformedDistribution):
    """tanh of a normal variable; loc and scale have the actions' shape."""

    def __init__(self, loc: Tensor, scale: Tensor) -> None:
        self.loc, self.scale = loc, scale
        super().__init__(Normal(loc, scale), [TanhTransform(cache_size=1)])

    @property
    def mean(self) -> Tensor:
        """The transformed mean of the normal distribution: an action without noise, not the exact expectation."""
        mean = self.loc
        for transform in self.transforms:
            mean = transform(mean)
        return mean
