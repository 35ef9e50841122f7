"""A small BERT and real text for `trainer.py` and `lightning_bert.py`, and the loop that sets them beside eager.

The text is that of Python's own help pages, by paragraphs of many lengths, so that batches differ in length as they do
in practice; a tokenizer is trained on it first.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pydoc_data.topics import topics

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import BertConfig, BertForMaskedLM, DataCollatorForLanguageModeling, PreTrainedTokenizerFast

BATCH = 16
SIZES = {"tiny": (64, 2, 64, 12), "small": (128, 4, 128, 48)}
"""Width, layers, longest row of tokens, steps."""


def paragraphs() -> list[str]:
    """Those of the help pages with at least eight words."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    return [words for part in text.split("\n\n") if len((words := " ".join(part.split())).split()) >= 8]


def prepared(size: str) -> tuple[BertForMaskedLM, list[dict[str, list[int]]], DataCollatorForLanguageModeling]:
    """A model, rows of tokens for its steps, and what makes padded batches with masked words of them."""
    width, layers, length, steps = SIZES[size]
    texts = paragraphs()
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    pieces = ByteLevelBPETokenizer()  # the same pieces at each training, as WordPiece's are not
    pieces.train_from_iterator(texts, vocab_size=2000, show_progress=False, special_tokens=[*special.values()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces._tokenizer, model_max_length=length, **special)
    rows = [dict(tokenizer(text, truncation=True)) for text in texts[: steps * BATCH]]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 32,
        intermediate_size=4 * width, max_position_embeddings=length, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForMaskedLM(config), rows, DataCollatorForLanguageModeling(tokenizer)


def run(script: str, train: Callable[[str, bool], tuple[list[float], list[float]]]) -> None:
    """The command line of an example, whose `train(size, compiled)` gives losses and seconds of its steps."""
    parser = argparse.ArgumentParser(prog=os.path.basename(script))
    parser.add_argument("--eager", action="store_true", help="leave compiling out")
    parser.add_argument("--tiny", action="store_true", help="a smaller model and fewer steps")
    parser.add_argument("--compare", action="store_true", help="run both in turn: loss curves and times of a step")
    parser.add_argument("--rounds", type=int, default=3, help="how often --compare runs each")
    given = parser.parse_args()
    if given.compare:
        compare(script, ["--tiny"] * given.tiny, given.rounds)
        return
    losses, seconds = train("tiny" if given.tiny else "small", not given.eager)
    print("losses", *(f"{loss:.5f}" for loss in losses))
    print("step ms", *(f"{1000 * each:.1f}" for each in seconds))


def compare(script: str, arguments: list[str], rounds: int) -> None:
    """Run a script with `--eager` and under `smelt run`, in turn, and print both loss curves and times of a step.

    The first half of the steps, in which smelt compiles, does not count in the times of a step.
    """
    commands = {
        "eager": [sys.executable, script, "--eager", *arguments],
        "smelt": [sys.executable, "-m", "smelt.cli.main", "run", script, *arguments],
    }
    steps: dict[str, list[float]] = {name: [] for name in commands}
    whole: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(rounds):
        for name, command in commands.items():
            told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            lines = dict(line.split(" ", 1) for line in told.splitlines() if line.startswith(("losses ", "step ")))
            times = [float(word) for word in lines["step"].split()[1:]]
            steps[name] += times[len(times) // 2 :]
            whole[name].append(sum(times) / 1000)
            if turn == 0:
                print(f"{name} losses {lines['losses']}")
    for name, times in steps.items():
        low, median, high = statistics.quantiles(times, n=4)
        print(f"{name} step {median:.1f} ms ({low:.1f} to {high:.1f} in half of them); all steps of a run, with "
              f"compiling, {statistics.median(whole[name]):.2f} s")  # fmt: skip
    medians = {name: statistics.median(times) for name, times in steps.items()}
    print(f"smelt's steps are {medians['eager'] / medians['smelt']:.2f} times as fast")
