"""The two trainings of the demo, as data: model, optimizer, batches, loss, and the score that is measured at the
end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from smelt.base.errors import unknown_name
from smelt.bench.torchvision_schemas import define_torchvision_schemas
from smelt.demo.data import ALPHABET, Digits, Text, decode, encode, handwritten_digits, standard_library_text

Model = Callable[..., Any]


@dataclass(frozen=True)
class Task:
    """One training. `loss(model, batch)` and `score(model)` take the model to call: eager or compiled."""

    name: str
    title: str
    build: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    batches: Callable[[], Iterator[Any]]
    loss: Callable[[Model, Any], Tensor]
    score_name: str
    score: Callable[[Model], float]
    sample: Callable[[nn.Module], str] | None = None


BATCH, LENGTH = 8, 128
PROMPT = "def "


def text_task() -> Task:
    """A GPT-2 of 4 layers and width 256 that reads source text character by character."""
    text = standard_library_text()
    return Task(
        name="text",
        title="GPT-2 (4 layers, width 256) on the text of Python's standard library",
        build=build_gpt2,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
        batches=lambda: text.batches(seed=1, batch=BATCH, length=LENGTH),
        loss=lambda model, tokens: model(input_ids=tokens, labels=tokens).loss,
        score_name="held-out loss",
        score=lambda model: held_out_loss(model, text),
        sample=write_text,
    )


def build_gpt2() -> nn.Module:
    """A small GPT-2 of Hugging Face, without dropout, so that both trainings compute with the same numbers."""
    define_torchvision_schemas()
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.utils import logging

    logging.set_verbosity_error()  # a warning about the loss function would break the live display
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    size = {"n_layer": 4, "n_embd": 256, "n_head": 4, "n_positions": LENGTH, "vocab_size": len(ALPHABET)}
    return GPT2LMHeadModel(GPT2Config(**size, **no_dropout, use_cache=False, bos_token_id=0, eos_token_id=0))


def held_out_loss(model: Model, text: Text) -> float:
    """Mean loss per character on 8 batches of text that was not trained on."""
    losses = [model(input_ids=tokens, labels=tokens).loss for tokens in text.windows(BATCH, LENGTH, 8)]
    return float(torch.stack(losses).mean())


def write_text(model: nn.Module, characters: int = 240) -> str:
    """Text that the trained model writes after PROMPT (drawn with a fixed seed)."""
    generator = torch.Generator().manual_seed(0)
    tokens = encode(PROMPT)[None]
    for _ in range(characters):
        scores = model(input_ids=tokens[:, -LENGTH:]).logits[0, -1]
        drawn = torch.multinomial(torch.softmax(scores / 0.7, dim=-1), 1, generator=generator)
        tokens = torch.cat((tokens, drawn[None]), dim=1)
    return decode(tokens[0])


def digits_task() -> Task:
    """A timm ResNet-18 that classifies handwritten digits."""
    digits = handwritten_digits()
    return Task(
        name="digits",
        title="ResNet-18 on scikit-learn's handwritten digits",
        build=build_resnet,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
        batches=lambda: digits.batches(seed=1, batch=32),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        score_name="held-out accuracy",
        score=lambda model: accuracy(model, digits),
    )


def build_resnet() -> nn.Module:
    """timm's ResNet-18 for images of one channel and ten classes."""
    define_torchvision_schemas()
    import timm

    return timm.create_model("resnet18", pretrained=False, in_chans=1, num_classes=10)


def accuracy(model: Model, digits: Digits) -> float:
    """Fraction of the held-out digits that are classified correctly."""
    return float((model(digits.test_images).argmax(dim=-1) == digits.test_targets).float().mean())


TASKS: dict[str, Callable[[], Task]] = {"text": text_task, "digits": digits_task}


def find_task(name: str) -> Task:
    """The task of that name, with its data loaded.

    Raises:
        OptionError: the name is unknown (the message lists all tasks and the nearest one).
    """
    if name not in TASKS:
        raise unknown_name("part of the demo", name, TASKS)
    return TASKS[name]()
