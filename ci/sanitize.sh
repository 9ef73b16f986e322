#!/usr/bin/env bash
# Runs the kernels of the all-reduce and of the reduction on GPUs, plainly and under compute-sanitizer. No JVM: a small
# program, ci/sanitize/kernels.cu, launches them as the Java code does. Logs are kept in ci/target/sanitize/.
#   ci/sanitize.sh [GPUS]    on 2 GPUs unless told; on 1, nothing goes from GPU to GPU
#   ci/sanitize.sh --compile ARCHITECTURE FILE    only compiles the program, for example for sm_90a
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=ci/setup.sh
source "$root/ci/setup.sh"
PATH=$PATH:/usr/local/cuda/bin

logs=$root/ci/target/sanitize
program=$logs/kernels
# racecheck looks at shared memory, of which the kernels have none but what barriers use; it is quick.
tools=(memcheck racecheck synccheck initcheck)
# Seconds for a run. The kernels give up on their own, each after 60.
limit=300

# compile ARCHITECTURE FILE
compile() {
  nvcc -arch="$1" -std=c++17 -O2 -lineinfo -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror \
    -I "$root/native-ops/src/main/resources/org/djlx/nativeops" -o "$2" "$root/ci/sanitize/kernels.cu"
}

# architecture GPUS: prints what the kernels are compiled for, as the Java code has it; dies where something is missing.
architecture() {
  local -a capabilities
  local tool
  for tool in nvcc compute-sanitizer nvidia-smi; do
    command -v "$tool" >/dev/null || die "there is no $tool"
  done
  mapfile -t capabilities < <(nvidia-smi --query-gpu=compute_cap --format=csv,noheader)
  ((${#capabilities[@]} >= $1)) || die "needs $1 GPUs, has ${#capabilities[@]}"
  local number=${capabilities[0]/./}
  printf 'sm_%s\n' "$number$( ((number < 90)) || printf a)"
}

# run NAME COMMAND...: runs the program, with a line on how it went. Fails if anything was wrong.
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
    [[ $name != plain ]]
  fi
}

if [[ ${1:-} == --compile ]]; then
  compile "$2" "$3"
  exit
fi

gpus=${1:-2}
mkdir -p "$logs"
target=$(architecture "$gpus")
say "nvcc ci/sanitize/kernels.cu for $target"
compile "$target" "$program"
run plain "$program" "$gpus" || die "the kernels do not work even without a tool"
failed=()
for tool in "${tools[@]}"; do
  # The program checks its calls itself, and asks on purpose what is not ready.
  run "$tool" compute-sanitizer --tool "$tool" --error-exitcode 99 --report-api-errors no --print-limit 20 \
    "$program" "$gpus" || failed+=("$tool")
done
((${#failed[@]} == 0)) || die "failed: ${failed[*]}"
say "The kernels passed: plain ${tools[*]}"
