"""What the programs of this folder share: handwritten digits, a model of equal blocks, processes, checkpoints.

torchrun starts each program, once for each GPU (NCCL), or twice on a CPU (gloo).
"""

import argparse
import gc
import os
import sys
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.utils.data import TensorDataset

BATCH, SEEN = 32, 1500
"""Images of a process and step; images that are trained on, of 1797."""


class Block(nn.Module):
    """Attention among the rows of an image, then two layers: tensors of [batch, rows, width]."""

    def __init__(self, width: int, heads: int = 2):
        super().__init__()
        self.heads = heads
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.mix(self.norm(x)).unflatten(-1, (3 * self.heads, -1)).transpose(1, 2).chunk(3, 1)
        x = x + nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        return x + self.outer(nn.functional.gelu(self.inner(x)))


class Reader(nn.Module):
    """Tells which digit an image [batch, 8, 8] shows: logits of [batch, 10]."""

    def __init__(self, width: int = 32, blocks: int = 2):
        super().__init__()
        self.embed, self.head = nn.Linear(8, width), nn.Linear(8 * width, 10)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.flatten(1))


def data(seen: bool = True) -> TensorDataset:
    """Images and labels to train on, or the others."""
    images, labels = load_digits(return_X_y=True)
    part = slice(0, SEEN) if seen else slice(SEEN, None)
    return TensorDataset(
        torch.tensor(images[part], dtype=torch.float32).view(-1, 8, 8) / 16, torch.tensor(labels[part])
    )


def batches(device: torch.device, first: int, last: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """This process's share of the steps from `first` to before `last`."""
    images, labels = data().tensors
    for step in range(first, last):
        at = ((step * dist.get_world_size() + dist.get_rank()) * BATCH + torch.arange(BATCH)) % SEEN
        yield images[at].to(device), labels[at].to(device)


def arguments(**more: str) -> argparse.Namespace:
    """The command line; `more` gives further options that take a text, and what they do."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--eager", action="store_true", help="leave compiling out")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--checkpoint", metavar="FOLDER", help="where to write one at the end (default: nowhere)")
    for name, help_text in more.items():
        parser.add_argument(f"--{name}", help=help_text)
    if "LOCAL_RANK" not in os.environ:
        sys.exit(f"torchrun starts this program: torchrun --nproc-per-node 2 {sys.argv[0]}")
    torch.manual_seed(0)  # the same parameters in each process
    return parser.parse_args()


def run(train: Callable[[argparse.Namespace, torch.device], None], begin: bool = True, **more: str) -> None:
    """Call `train(options, device)` in a group of processes, which is begun here unless the library in use does it."""
    options = arguments(**more)
    gpus = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    if begin and not dist.is_initialized():
        dist.init_process_group("nccl" if gpus else "gloo", device_id=device if gpus else None)
    train(options, device)
    gc.collect()  # models go before the group does: a gloo group that ends with its last model may wait for ever
    dist.destroy_process_group()


def print_losses(losses: list[torch.Tensor]) -> None:
    """Process 0 prints the losses of the steps, each the mean of all processes."""
    mean = torch.stack(losses)
    dist.all_reduce(mean)
    if dist.get_rank() == 0:
        print("losses", *(f"{loss / dist.get_world_size():.5f}" for loss in mean.tolist()), flush=True)


def save(model: nn.Module, folder: str | None) -> None:
    """Write the parameters under their plain names; each process writes its share."""
    if folder:
        dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=folder)
