"""Loads a checkpoint of any program of this folder: `python examples/distributed/load.py FOLDER...`.

One process, eager, without smelt: the files hold the parameters under their plain names.
"""

import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from digits import Reader, data


def parameters(folder: Path) -> dict[str, torch.Tensor]:
    """Those of a checkpoint by torch.distributed.checkpoint, Accelerate, Trainer, Lightning or DeepSpeed."""
    if (folder / "model.safetensors").exists():
        from safetensors.torch import load_file

        return load_file(folder / "model.safetensors")
    if (folder / "learner.ckpt").exists():
        state = torch.load(folder / "learner.ckpt", weights_only=True)["state_dict"]
        return {name.removeprefix("reader."): value for name, value in state.items()}
    if (folder / "pytorch_model.bin").exists():
        return torch.load(folder / "pytorch_model.bin", weights_only=True)
    state = {"model": Reader().state_dict()}
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    return state["model"]


def main(folders: list[str]) -> None:
    images, labels = data(seen=False).tensors
    for folder in folders:
        model = Reader()
        model.load_state_dict(parameters(Path(folder)))
        with torch.no_grad():
            right = (model(images).argmax(-1) == labels).float().mean()
        print(f"{folder}: right on digits that it has not seen: {right.item():.2f}")
    assert sys.modules.get("smelt") is None


if __name__ == "__main__":
    main(sys.argv[1:])
