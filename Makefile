# Everything starts here: `make demo`, `make demo-tiny`, `make test`, `make test-gpu`, `make test-ops`, `make test-fuzz`, `make test-faults`, `make test-memory`, `make test-crash`, `make test-long`, `make test-asan`, `make test-asan-all`, `make replay BASE=main`, `make bench-suites`, `make lint`, `make docs`, `make site`. Each sets up what it needs first.
#   PYTHON=3.12 (a version or an executable; default: the first of 3.11 to 3.13 found)
#   TORCH=2.12.1 (default 2.13.0)
#   TORCH_INDEX=https://download.pytorch.org/whl/cpu (another package index for torch alone; default: none)
#   WORKERS=1 (processes that share the tests; default: one more than there are cores, at most 8)
#   ARGS="-k guards -x" (passed on to pytest, `smelt demo` or `smelt bench`)
#   RIVALS=eager,torch.compile (of `make bench-suites`; default eager, which takes a third of an hour)
# The default choice lives in .venv, every other in a folder of its own beside it.

DEFAULT_TORCH := 2.13.0
PYTHON ?=
TORCH ?= $(DEFAULT_TORCH)
TORCH_INDEX ?=
ARGS ?=
JOBS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n > 2 ? n - 2 : 1)))
# One more than cores: tests that wait for other processes left a seventh of two cores idle.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n > 7 ? 8 : n + 1)))

# torchvision has one release line for each of torch's; timm imports its Python part.
TORCHVISION_2.11 := 0.26.0
TORCHVISION_2.12 := 0.27.1
TORCHVISION_2.13 := 0.28.0
TORCHVISION_2.14 := 0.29.1
TORCHVISION_2.15 := 0.29.2
TORCHVISION ?= $(TORCHVISION_$(basename $(TORCH)))

ifeq ($(PYTHON)$(TORCH),$(DEFAULT_TORCH))
VENV ?= .venv
else
VENV ?= .venv-$(if $(PYTHON),$(subst /,_,$(PYTHON)),default)-torch$(TORCH)
endif

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SOURCES := $(shell find smelt -name '*.c' -o -name '*.h')

.PHONY: help setup setup-tiny demo demo-tiny test test-gpu test-ops test-ops-gpu test-fuzz test-fuzz-gpu test-faults test-memory test-crash test-long test-asan test-asan-all replay sanitize-gpu bench-suites lint format docs site clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | sed -n '1,8p'

setup: $(VENV)/.ready

# torch comes first and is then held by a constraints file: timm, torchvision and effdet by themselves would
# replace it with the newest CUDA build. They come without their dependencies, which follow by name; of these Python compiles what is imported.
$(VENV)/.packages: pyproject.toml tools/find_python.sh
	@test -n "$(TORCHVISION)" || { echo "smelt supports torch 2.11 to 2.15, not $(TORCH)" >&2; exit 1; }
	python=$$(tools/find_python.sh $(PYTHON)) && { test -x $(BIN)/python || "$$python" -m venv $(VENV); }
	$(PIP) install --quiet "setuptools>=77" wheel
	$(PIP) install --quiet "torch==$(TORCH)" $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	$(BIN)/python -c "import importlib.metadata as m; print('torch==' + m.version('torch'))" > $(VENV)/constraints.txt
	$(PIP) install --quiet --no-deps "torchvision==$(TORCHVISION)" "timm>=1" \
	    "effdet==0.4.1" "omegaconf>=2.3" "antlr4-python3-runtime==4.9.3" "pycocotools>=2"
	$(PIP) install --quiet --no-compile --constraint $(VENV)/constraints.txt pyyaml huggingface_hub safetensors pillow \
	    $$($(BIN)/python tools/requirements.py)
	touch $@

# Without build isolation the extensions are built against the Python and torch that are already here.
$(VENV)/.ready: $(VENV)/.packages $(wildcard setup.py) $(SOURCES)
	$(PIP) install --quiet --no-build-isolation --no-deps --editable .
	touch $@

demo: setup
	$(BIN)/smelt demo $(ARGS)

# A network learns new classes on an emulated microcontroller; table and plot in smelt_report/tiny.
demo-tiny: setup setup-tiny
	$(BIN)/smelt tiny demo $(ARGS)

test: setup setup-tiny
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

# Cross compilers, emulators and the data set of the tests of `smelt tiny`; those that cannot be installed skip tests.
setup-tiny:
	tools/install_tiny.sh

# The tests that need a GPU; without one all of them are skipped, and the run says so.
test-gpu: setup
	$(BIN)/python -m pytest -m gpu -rs $(ARGS)

# Every operator of PyTorch's OpInfo database against eager: values, gradients, strides, what shares memory, results that
# are held; in seven layouts and with sizes of 0 and 1. A run that was interrupted goes on; a row that ends its process
# costs that row alone.
# OPS="--dtypes float32 --shard 0/4" chooses; OPS="--table docs/operators-opinfo.md" (of the layout `own`, all samples)
# writes the table of the results.
OPS ?= --dtypes float32,bfloat16,int64 --layouts all
test-ops: setup
	$(BIN)/python -m tests.ops --out smelt_report/ops $(OPS)

# The same on a GPU, a sample of each row, in as many processes as there are cores.
OPS_GPU ?= --dtypes float32,bfloat16,int64 --layouts all --samples 1 --seconds 480
test-ops-gpu: setup
	$(BIN)/python -m tests.ops --device cuda --jobs $(JOBS) --out smelt_report/ops-gpu $(OPS_GPU)

# Random programs of tensors of any dtype and layout; a run that was interrupted goes on.
FUZZ ?= --programs 2000
test-fuzz: setup
	$(BIN)/python -m tests.fuzz.tensors --out smelt_report/fuzz $(FUZZ)

FUZZ_GPU ?= --programs 20000
test-fuzz-gpu: setup
	$(BIN)/python -m tests.fuzz.tensors --device cuda --jobs $(JOBS) --out smelt_report/fuzz-gpu $(FUZZ_GPU)

# Interrupts and failed calls anywhere in compilations and compiled calls; a run that was interrupted goes on.
FAULTS ?= --interrupts 2000 --failures 2000
test-faults: setup
	$(BIN)/python -m tests.faults --out smelt_report/faults --jobs $(WORKERS) $(FAULTS)

# Behaviour, the smoke suite and both sweeps with each buffer in memory of its own, watched after every kernel.
MEMORY_TESTS ?= tests/test_api.py tests/test_program.py tests/test_dynamic.py tests/test_models.py tests/test_whole_step.py \
    tests/autograd tests/codegen/cpp/test_kernel.py tests/ops tests/fuzz/test_tensors.py tests/bench/suites/test_smoke.py
test-memory: export SMELT_DEBUG_MEMORY = 1
test-memory: setup
	$(BIN)/python -m pytest -n $(WORKERS) $(MEMORY_TESTS) $(ARGS)
	$(BIN)/python -m tests.fuzz.tensors --out smelt_report/memory --seed memory --programs 1000 --jobs $(WORKERS)
	$(BIN)/python -m tests.ops --out smelt_report/memory --dtypes float32 --layouts all --samples 2 --jobs $(WORKERS)

# Processes that build kernels of one cache at once, each killed at a random moment: what they leave is looked at.
CRASH ?= --rounds 20 --processes 32
test-crash: setup
	$(BIN)/python -m tests.store_crash $(CRASH)

# Many different small models, compiled and dropped in one process: memory and mappings stay as they are.
LONG ?= --models 10000
test-long: setup
	$(BIN)/python -m tests.longrun $(LONG)

# The C extensions and all generated kernels with the address and undefined-behaviour sanitizers, in build/asan: the
# tests that reach most of the native code. ARGS="tests/capture/test_frame.py -x" chooses tests.
test-asan: setup
	PYTHON=$(abspath $(BIN))/python tools/test_asan.sh $(ARGS)

# The same over every test of native code; a test that ends its process costs that test alone.
test-asan-all: setup
	PYTHON=$(abspath $(BIN))/python tools/test_asan.sh all -n $(WORKERS) $(ARGS)

# Whether the working tree generates what another commit does, which is built beside it: what a `refactor:` commit shows.
# ARGS="--only functions/,bert" chooses programs, ARGS="--head COMMIT" another commit in place of the working tree.
BASE ?= HEAD
replay: setup
	$(BIN)/python -m tests.replay $(BASE) $(ARGS)

# NVIDIA's compute-sanitizer, which comes with the CUDA toolkit, over a slice of the random programs.
sanitize-gpu: setup
	PYTHON=$(BIN)/python tools/sanitize_gpu.sh

# All 163 models at CPU size, one file of results a day; a run that was interrupted goes on.
RIVALS ?= eager
RESULTS ?= smelt_report/suites-$(shell date +%F).json
bench-suites: setup
	mkdir -p $(dir $(RESULTS))
	$(BIN)/smelt bench --suite all --rivals $(RIVALS) --timeout 600 --json $(RESULTS) --resume $(ARGS); \
	    status=$$?; $(BIN)/smelt bench report $(RESULTS) --out $(basename $(RESULTS)); exit $$status

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup
	$(BIN)/python docs/make_story.py
	$(BIN)/python docs/make_files.py
	$(BIN)/smelt ops --write docs/operators.md

# docs/ as a site, in build/site: open build/site/index.html. A link that leads nowhere is an error.
site: setup
	$(BIN)/python -m mkdocs build --strict

clean:
	rm -rf build dist smelt_report smelt_trace *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find smelt -name '*.so' -delete
