#!/usr/bin/env bash
# Runs the kernels of all-reduces, exchanges, all-to-alls, barriers, norms, reductions and, on Hopper, fused matmuls on GPUs,
# without a tool and under compute-sanitizer. Small programs without a JVM, ci/sanitize/*.cu, launch them as the Java code does.
# Logs go to ci/target/sanitize/.
#   ci/sanitize.sh [GPUS [SEED]]    on 2 GPUs if not given; on 1, nothing goes from GPU to GPU
# The seed, printed, and random if not given, decides the numbers of ranks, the order of launches, and sizes.
#   ci/sanitize.sh --compile ARCHITECTURE FOLDER    only compiles the programs, for example for sm_90a
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=ci/setup.sh
source "$root/ci/setup.sh"
PATH=$PATH:/usr/local/cuda/bin

logs=$root/ci/target/sanitize
# racecheck checks shared memory only.
tools=(memcheck racecheck synccheck initcheck)
# Seconds for a run. Each kernel times out after 60 s.
limit=300

if [[ ${1:-} == --compile ]]; then seed=1; else seed=${2:-$SRANDOM}; fi
# Two numbers of ranks from 2 to 7; 8 ranks have an algorithm of their own.
ranks=($((2 + seed % 6)) $((2 + (seed + 1 + seed / 6 % 5) % 6)) 8)

# Name, source and macros of each program. The matmul programs cover both operators, all tile shapes, all types, B by rows and
# by columns, with and without gates.
programs=(
  "kernels-${ranks[0]} kernels.cu -DRANKS=${ranks[0]}"
  "kernels-${ranks[1]} kernels.cu -DRANKS=${ranks[1]}"
  "kernels-${ranks[2]} kernels.cu -DRANKS=${ranks[2]}"
  "gather-rows matmul.cu -DTILE_N=256 -DTYPE=Bfloat16 -DTRANSPOSED=0 -DSCATTER=0"
  "scatter-columns matmul.cu -DTILE_N=256 -DTYPE=Bfloat16 -DTRANSPOSED=1 -DSCATTER=1"
  "gather-columns matmul.cu -DTILE_N=128 -DTYPE=Float16 -DTRANSPOSED=1 -DSCATTER=0"
  "gather-gated matmul.cu -DTILE_N=256 -DTYPE=Bfloat16 -DTRANSPOSED=1 -DSCATTER=0 -DGATED=1"
  "gather-scaled matmul.cu -DTILE_N=128 -DTYPE=Bfloat16 -DTRANSPOSED=1 -DSCATTER=0 -DSCALED=1"
  "scatter-scaled matmul.cu -DTILE_N=64 -DTYPE=Bfloat16 -DTRANSPOSED=1 -DSCATTER=1 -DSCALED=1"
  "scatter-rows matmul.cu -DTILE_N=64 -DTYPE=Float16 -DTRANSPOSED=0 -DSCATTER=1"
)

# compile ARCHITECTURE FOLDER: compiles the programs that GPUs of the architecture run, and prints their names.
compile() {
  local architecture=$1 program
  local -a words
  for program in "${programs[@]}"; do
    read -ra words <<<"$program"
    [[ ${words[1]} != matmul.cu || $architecture == sm_90a ]] || continue
    say "nvcc ci/sanitize/${words[*]:1} for $architecture"
    # -arch alone also compiles for compute_90, which lacks instructions of sm_90a.
    nvcc -gencode "arch=${architecture/sm/compute},code=$architecture" -std=c++17 -O2 -lineinfo -Werror all-warnings \
      -Xcompiler -Wall,-Wextra,-Werror -I "$root/ci/sanitize" -I "$root/native-ops/src/main/resources/org/djlx/nativeops" \
      "${words[@]:2}" -o "$2/${words[0]}" "$root/ci/sanitize/${words[1]}" || die "${words[0]} does not compile"
    printf '%s\n' "${words[0]}"
  done
}

# architecture GPUS: prints the architecture to compile for, as the Java code chooses it; fails without the tools and GPUs.
architecture() {
  local -a capabilities
  local tool
  for tool in nvcc compute-sanitizer nvidia-smi; do
    command -v "$tool" >/dev/null || die "$tool not found"
  done
  mapfile -t capabilities < <(nvidia-smi --query-gpu=compute_cap --format=csv,noheader)
  ((${#capabilities[@]} >= $1)) || die "$1 GPUs are needed; nvidia-smi shows ${#capabilities[@]}"
  local number=${capabilities[0]/./}
  printf 'sm_%s\n' "$number$( ((number < 90)) || printf a)"
}

# run NAME COMMAND...: runs a program, with a line on how it went. Fails if anything was wrong.
run() {
  local name=$1 status=0 begin=$SECONDS
  shift
  timeout -k 10 "$limit" "$@" >"$logs/$name.log" 2>&1 || status=$?
  if ((status != 0)); then
    say "$name: FAILED with status $status after $((SECONDS - begin)) s; the end of $logs/$name.log:"
    tail -n 40 "$logs/$name.log" >&2
    return 1
  fi
  say "$name: passed in $((SECONDS - begin)) s"
  # Kernels of one GPU ran one after the other. A tool may want that; without one, it is wrong.
  if grep 'LEFT OUT' "$logs/$name.log" >&2; then
    [[ $name != *plain ]]
  fi
}

if [[ ${1:-} == --compile ]]; then
  compile "$2" "$3" >/dev/null
  exit
fi

gpus=${1:-2}
say "seed $seed: ${ranks[*]} ranks; again by ci/sanitize.sh $gpus $seed"
mkdir -p "$logs"
target=$(architecture "$gpus")
names=$(compile "$target" "$logs")
failed=()
for name in $names; do
  run "$name-plain" "$logs/$name" "$gpus" "$seed" || {
    failed+=("$name-plain")
    continue # It does not work even without a tool.
  }
  for tool in "${tools[@]}"; do
    # The programs check their calls themselves, and ask on purpose what is not ready. Tools need not watch what stands for
    # cuBLAS's kernels: racecheck takes minutes for its shared memory.
    run "$name-$tool" compute-sanitizer --tool "$tool" --error-exitcode 99 --report-api-errors no --print-limit 20 \
      --kernel-regex-exclude kns=stand_in "$logs/$name" "$gpus" "$seed" || failed+=("$name-$tool")
  done
done
((${#failed[@]} == 0)) || die "failed: ${failed[*]}"
say "The kernels passed: plain ${tools[*]}"
