#!/bin/sh
# The C extensions and all generated kernels built with the address and undefined-behaviour sanitizers, in a folder of
# their own, and tests run with them.
#   tools/test_asan.sh                       a slice: the tests that reach most of the native code
#   tools/test_asan.sh all -n 4              every test of native code: extensions, capture, generated kernels, launches
#   tools/test_asan.sh tests/base -k store   arguments of pytest
# What the sanitizers find, in child processes of tests too, lies in build/asan/reports and is printed at the end; the
# exit status is 1 then, whatever the tests say.
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
for each in docs bench tools Makefile CHANGELOG.md CONTRIBUTING.md; do ln -sfn "$root/$each" "$folder/$each"; done
cd "$folder"
CFLAGS="-g -O1 $checks" LDFLAGS="$checks" "$python" setup.py -q build_ext --inplace
rm -rf reports
mkdir reports

# CXX may be a command: generated kernels are built with the checks, too.
export CXX="${CXX:-c++} $checks -g1"
export PYTHONPATH="$folder" PYTHONMALLOC=malloc
export LD_PRELOAD="$runtime $undefined"
# Leaks: Python and torch keep what they have at exit. odr: each kernel exports the same names.
export ASAN_OPTIONS="detect_leaks=0,detect_odr_violation=0,allocator_may_return_null=1,handle_segv=0,log_path=$folder/reports/asan,${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1,log_path=$folder/reports/ubsan,${UBSAN_OPTIONS:-}"
case ${1:-} in
    all)
        shift
        set -- "$@" tests/abi tests/autograd/call tests/autograd/test_functions_gradients.py tests/base tests/capture \
            tests/codegen tests/runtime tests/test_exit.py tests/test_memory_of_dropped_models.py tests/test_no_crash.py
        ;;
    "")
        set -- tests/capture/guards/test_calibrate.py tests/capture/test_frame.py tests/capture/guards/test_guards.py \
            tests/capture/test_guard_memos.py tests/capture/test_lifetimes.py tests/capture/test_session.py \
            tests/capture/core/test_generators.py tests/capture/residual/test_resumption.py \
            tests/runtime/test_launch.py tests/runtime/library/test_gemm.py \
            tests/runtime/library/test_depthwise_cpu.py tests/runtime/test_memory.py tests/codegen/cpp/test_kernel.py \
            tests/autograd/call/test_calling_convention.py tests/test_memory_of_dropped_models.py
        ;;
esac
# Freed memory is held back for a while, so that its use is found, and shadow memory takes address space: how much there
# is of both says nothing here. Greenlets copy the stack, with what the sanitizer has put between its variables.
status=0
"$python" -m pytest -p no:cacheprovider -k "not growth and not to_be_had and not greenlet and not gevent" "$@" || status=$?
unset LD_PRELOAD
found=$(grep -lE "ERROR: AddressSanitizer|runtime error:" reports/* 2>/dev/null || true)
for each in $found; do
    echo "== $each"
    head -40 "$each"
    status=1
done
exit "$status"
