"""The neural grammar of Kim, Dyer, Rush: "Compound Probabilistic Context-Free Grammars for Grammar Induction" (2019),
without its latent vector: embeddings of symbols give the log-probabilities of the rules of a grammar.

As in the implementation of the public benchmark, the table of word probabilities is expanded to (batch, length,
preterminals, vocabulary) before one entry per word is gathered. This is huge unless the expanded table remains a view,
and the gradient of the gather has that size. Rules and roots are expanded over the batch; forward consists of three
nested functions; the output is a tuple of three tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

CPU = {"vocabulary": 200, "preterminals": 6, "nonterminals": 6, "hidden": 32}
FULL = {"vocabulary": 5000, "preterminals": 30, "nonterminals": 30, "hidden": 256}


class ResidualNetwork(nn.Module):
    """Computes f(x) = g1(g2(W x)) with g(y) = relu(V relu(U y)) + y, which maps (any, hidden) to the same shape."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.input = nn.Linear(hidden, hidden)
        self.first_inner = nn.Linear(hidden, hidden)
        self.first_outer = nn.Linear(hidden, hidden)
        self.second_inner = nn.Linear(hidden, hidden)
        self.second_outer = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = self.input(x)
        x = functional.relu(self.first_outer(functional.relu(self.first_inner(x)))) + x
        return functional.relu(self.second_outer(functional.relu(self.second_inner(x)))) + x


class NeuralGrammar(nn.Module):
    """Maps words (batch, length) to the log-probabilities of a grammar with S = nonterminals + preterminals symbols.

    The result is terms (batch, length, preterminals), rules (batch, nonterminals, S, S), roots (batch, nonterminals).
    """

    def __init__(self, vocabulary: int, preterminals: int, nonterminals: int, hidden: int) -> None:
        super().__init__()
        symbols = nonterminals + preterminals
        self.word = nn.Parameter(torch.empty(vocabulary, hidden))
        self.preterminal = nn.Parameter(torch.empty(preterminals, hidden))
        self.nonterminal = nn.Parameter(torch.empty(nonterminals, hidden))
        self.pair = nn.Parameter(torch.empty(symbols, symbols, hidden))
        self.root = nn.Parameter(torch.empty(nonterminals, hidden))
        self.start = nn.Parameter(torch.empty(1, hidden))
        self.term_network = ResidualNetwork(hidden)
        self.root_network = ResidualNetwork(hidden)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, length = words.shape
        preterminals, vocabulary, nonterminals = len(self.preterminal), len(self.word), len(self.nonterminal)

        def terms() -> Tensor:
            scores = torch.einsum("vh,th->tv", self.word, self.term_network(self.preterminal)).log_softmax(-1)
            every = scores.unsqueeze(0).unsqueeze(0).expand(batch, length, preterminals, vocabulary)
            chosen = words.unsqueeze(2).expand(batch, length, preterminals).unsqueeze(3)
            return torch.gather(every, 3, chosen).squeeze(3)

        def rules() -> Tensor:
            scores = torch.einsum("sh,lrh->slr", self.nonterminal, self.pair)
            return scores.flatten(1).log_softmax(-1).view_as(scores).unsqueeze(0).expand(batch, *scores.shape)

        def roots() -> Tensor:
            scores = torch.einsum("ah,sh->as", self.root_network(self.start), self.root).log_softmax(-1)
            return scores.expand(batch, nonterminals)

        return terms(), rules(), roots()


def build(vocabulary: int, preterminals: int, nonterminals: int, hidden: int) -> nn.Module:
    """Build a neural grammar of the given size, with random weights."""
    return NeuralGrammar(vocabulary, preterminals, nonterminals, hidden)
