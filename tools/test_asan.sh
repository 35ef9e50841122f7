#!/bin/sh
# The C extensions and all generated kernels built with the address and undefined-behaviour sanitizers, in a folder of
# their own, and the tests of native code run with them. The arguments are passed to pytest in the tests' place.
set -eu
python=${PYTHON:-python}
root=$(cd "$(dirname "$0")/.." && pwd)
folder=${ASAN_FOLDER:-$root/build/asan}
compiler=${CC:-cc}
checks="-fsanitize=address,undefined -fno-sanitize=alignment,vptr -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
runtime=$($compiler -print-file-name=libasan.so)
undefined=$($compiler -print-file-name=libubsan.so)
[ -f "$runtime" ] || { echo "test_asan: $compiler has no address sanitizer" >&2; exit 2; }

# A copy, so that the checkout keeps its own extensions.
mkdir -p "$folder"
for each in smelt tests setup.py pyproject.toml README.md LICENSE; do
    rm -rf "${folder:?}/$each"
    cp -r "$root/$each" "$folder/"
done
find "$folder/smelt" -name '*.so' -delete
for each in docs bench tools; do ln -sfn "$root/$each" "$folder/$each"; done
cd "$folder"
CFLAGS="-g -O1 $checks" LDFLAGS="$checks" "$python" setup.py -q build_ext --inplace

# CXX may be a command: generated kernels are built with the checks, too.
export CXX="${CXX:-c++} $checks -g1"
export PYTHONPATH="$folder" PYTHONMALLOC=malloc
export LD_PRELOAD="$runtime $undefined"
# Leaks: Python and torch keep what they have at exit. odr: each kernel exports the same names.
export ASAN_OPTIONS="detect_leaks=0,detect_odr_violation=0,allocator_may_return_null=1,handle_segv=0,${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1,${UBSAN_OPTIONS:-}"
if [ $# -eq 0 ]; then
    set -- tests/capture/guards/test_calibrate.py tests/capture/test_frame.py tests/capture/guards/test_guards.py \
        tests/capture/test_guard_memos.py tests/capture/test_lifetimes.py tests/capture/test_session.py \
        tests/capture/core/test_generators.py tests/capture/residual/test_resumption.py tests/runtime/test_launch.py \
        tests/runtime/library/test_gemm.py tests/runtime/library/test_depthwise_cpu.py tests/runtime/test_memory.py \
        tests/codegen/test_programs.py tests/autograd/call/test_calling_convention.py tests/test_memory_back.py
fi
# Freed memory is held back for a while, so that its use is found, and shadow memory takes address space: how much there
# is of both says nothing here.
exec "$python" -m pytest -p no:cacheprovider -k "not growth and not to_be_had" "$@"
