#!/usr/bin/env bash
# NVIDIA's compute-sanitizer over a slice of the programs that run on a GPU: reads and writes outside of memory (memcheck),
# reads of memory that nobody has written (initcheck).
#   PYTHON=.venv/bin/python tools/sanitize_gpu.sh [memcheck] [initcheck]
# Exit status: 0 clean, 1 something was found, 2 compute-sanitizer or a GPU is missing.
set -uo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python}
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | tail -n 1)
if [ -z "$sanitizer" ]; then
    echo "sanitize_gpu: compute-sanitizer was not found; it comes with the CUDA toolkit" >&2
    exit 2
fi
if ! "$python" -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; then
    echo "sanitize_gpu: no CUDA device" >&2
    exit 2
fi

# A recording that is refused is an error of CUDA's interface which PyTorch clears: only what kernels do is reported.
# PyTorch's allocator keeps blocks, in which the tool would not see an end: each tensor gets memory of its own.
export PYTORCH_NO_CUDA_MEMORY_CACHING=1
status=0
tools=("$@")
[ ${#tools[@]} -gt 0 ] || tools=(memcheck initcheck)
for tool in "${tools[@]}"; do
    echo "== $tool"
    "$sanitizer" --tool "$tool" --report-api-errors no --error-exitcode 77 --print-limit 5 --target-processes application-only \
        "$python" -m tests.fuzz.tensors --device cuda --series "${PROGRAMS:-25}" --seed sanitize
    found=$?
    [ "$found" -eq 0 ] || { echo "$tool: exit status $found" >&2; status=1; }
done
exit $status
