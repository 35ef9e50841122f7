"""What each process of the tests of examples/distributed runs: every program, eager and compiled, one after the other.

Arguments: a folder for the checkpoints, then the names of the programs.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

from smelt.bench.torchvision_schemas import define_torchvision_schemas

define_torchvision_schemas()  # transformers and Lightning import torchvision

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import smelt  # noqa: E402

FOLDER = Path(__file__).parents[2] / "examples" / "distributed"
STEPS = 8


def losses_of(program: str, *more: str) -> list[float]:
    """Those that a program prints in the first process; none in another."""
    state = sys.modules.get("accelerate.state")
    for name in ("AcceleratorState", "GradientState", "PartialState") if state is not None else ():
        getattr(state, name)._reset_state()
    smelt.reset()
    sys.argv = [program, "--steps", str(STEPS), *more]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(str(FOLDER / f"{program}.py"), run_name="__main__")
    smelt.uninstall()
    lines = [line for line in out.getvalue().splitlines() if line.startswith("losses ")]
    return [float(word) for word in lines[0].split()[1:]] if lines else []


def main(folder: str, *programs: str) -> None:
    """Run them; process 0 prints what it has found, by the names of the programs."""
    torch.set_num_threads(1)
    sys.path.insert(0, str(FOLDER))
    told: dict[str, Any] = {}
    dist.init_process_group("gloo")
    end, dist.destroy_process_group = dist.destroy_process_group, dist.barrier  # they share one group
    for program in programs:
        place = f"{folder}/{program}"
        try:
            eager = losses_of(program, "--eager")
            found = {"eager": eager, "smelt": losses_of(program, "--checkpoint", place)}
            found["stats"] = {name: smelt.stats()[name] for name in ("graphs", "breaks", "fallbacks")}
            if program == "titan":
                found["resumed"] = losses_of(program, "--eager", "--resume", f"{place}/half")
        except Exception:
            traceback.print_exc()
            os._exit(1)  # the other process waits for this one
        told[program] = found
    if os.environ["RANK"] == "0":
        print("told", json.dumps(told), flush=True)
    end()


if __name__ == "__main__":
    main(*sys.argv[1:])
