"""Int8 inference and training on microcontrollers: from a model or a file to one C99 program that does both.

The modules in the order of the flow:

    model -> `quantize` or `models.load` -> `graph.Int8Graph` -> `step` (the joint graph) -> `plan` (one static arena)
          -> `render_c` (C99); `simulate` computes the same bits in torch, `host` builds and runs the C on this machine

Conventions of all modules:

- **Layout.** Activations are (height, width, channels), or (features,); images are batches of them, int8. Weights of a
  convolution are (outputs, kernel height, kernel width, inputs), of a depthwise one (kernel height, kernel width,
  channels), of a linear layer (outputs, inputs).
- **Values.** A real value is scale * (q - zero). Weights have a scale for each output channel and zero 0; a bias is
  int32 at the scale of the accumulator, scale of x * scale of w.
- **Rounding.** `clamp(accumulator * float32(sx sw / sy), low - zero, high - zero)` in float32, rounded half to even,
  plus zero.
- **Layers** are the convolutions and hidden linear layers of a graph, counted from 0 in the order of execution:
  `graph.layers`. The classifier is not one of them, and always trains.
- **A scheme** selects the parameters that train: `scheme.biases` is the number of last layers whose biases train,
  `scheme.weights` the ratio of trained input channels for some layers; `graph.updated_channels(inputs, ratio)` is
  their number. `step.StepOptions` describes the updates.
- **Programs.** `program.Program` represents `infer` or `train_step` before C is rendered: calls of kernels in order,
  and values with their sizes in bytes. `plan.lay_out` assigns each value an offset in the arena.
- **C.** `render_c.render(...)` returns texts by file name: `model.c`, `model.h`, `tiny_kernels.h`. They need a C99
  compiler, no library. `model.h` declares

      int8_t *model_input(void);                  the buffer of the image, MODEL_INPUT_BYTES
      const float *model_logits(void);            the MODEL_CLASSES logits of the last call
      int infer(void);                            returns the class; overwrites the image
      float train_step(int label, float rate);    returns the loss before the update; overwrites the image
      extern struct model_trained model_trained;  trained parameters and number of steps, for checkpoints
      MODEL_ARENA_BYTES, MODEL_TRAINED_BYTES, MODEL_FLASH_BYTES
"""

from smelt.tiny.attention import quantize as _quantize  # noqa: F401 (they fill the tables of rules and kernels)
from smelt.tiny.attention import render as _render  # noqa: F401
from smelt.tiny.attention import simulate as _simulate  # noqa: F401
from smelt.tiny.joining import quantize as _joining  # noqa: F401
from smelt.tiny.joining import render as _render_joining  # noqa: F401
from smelt.tiny.joining import simulate as _simulate_joining  # noqa: F401
from smelt.tiny.quantization import quantize
from smelt.tiny.search import search

__all__ = ["quantize", "search"]
