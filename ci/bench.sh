#!/usr/bin/env bash
# Measures, and keeps the figures in ci/results/.
#   ci/bench.sh cpu [arguments of `samples/run.sh bench-compare`]
#     all-reduce on this host's CPU, beside Gloo, and Open MPI where mpicc and mpirun are there
#   ci/bench.sh gpu [arguments of `samples/run.sh bench-gpu`]
#     all-reduce and the fused operators on this host's GPUs, beside NCCL. CLASSPATH names DJL's libtorch for GPUs and
#     the CUDA presets. Where there is no git, --commit says what is measured
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=ci/setup.sh
source "$root/ci/setup.sh"

peer_jars=$root/djl-collectives/target/peer
work=$root/ci/target

# commit: prints the state of the code, with "-dirty" if it is not as it was committed; nothing where git does not know.
commit() {
  git -C "$root" describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || true
}

# quoted WORD...: prints the words so that a shell reads them as they are.
quoted() {
  printf '%q ' "$@"
}

bench_cpu() {
  local -a gloo mpi args=()
  [[ " $*" == *" --json"* ]] || args+=(--json "$root/ci/results/cpu.json")
  mkdir -p "$work"
  say "Building, and fetching PyTorch for its Gloo"
  maven -q -DskipTests -Dspotless.check.skip=true package >&2
  gloo=(env OMP_NUM_THREADS=1 "$JAVA_HOME/bin/java" -Xmx1g
    "-Dorg.bytedeco.javacpp.cachedir=$work/gloo-cache" "-Dbench.source=$root/ci/bench/GlooBench.java"
    -cp "$peer_jars/*" "$root/ci/bench/GlooBench.java")
  [[ " $*" == *" --commit"* ]] || args+=(--commit "$(commit)")
  args+=(--peer "gloo=$(quoted "${gloo[@]}")")
  args+=(--version-of "gloo=$(basename "$peer_jars"/pytorch-*-linux-x86_64.jar -linux-x86_64.jar)")
  if command -v mpicc >/dev/null && command -v mpirun >/dev/null; then
    mpicc -O3 -march=native -Wall -Wextra -Werror -o "$work/mpi_bench" "$root/ci/bench/mpi_bench.c"
    mpi=(mpirun --allow-run-as-root --oversubscribe --bind-to core -n 2 "$work/mpi_bench")
    args+=(--peer "openmpi=$(quoted "${mpi[@]}")")
    args+=(--version-of "openmpi=$(mpirun --version | sed -n '1s/.* //p')")
  else
    say "Open MPI is not here (openmpi-bin, libopenmpi-dev): left out"
  fi
  "$root/samples/run.sh" bench-compare "${args[@]}" "$@"
}

# Without setup: all that is needed is Java where it has been built before.
bench_gpu() {
  local -a args=()
  [[ " $*" == *" --json"* ]] || args+=(--json "$root/ci/results/gpu-bench.json")
  [[ " $*" == *" --commit"* ]] || args+=(--commit "$(commit)")
  "$root/samples/run.sh" bench-gpu "${args[@]}" "$@"
}

case ${1:-} in
  cpu)
    shift
    setup
    bench_cpu "$@"
    ;;
  gpu)
    shift
    bench_gpu "$@"
    ;;
  *)
    die "usage: ci/bench.sh cpu|gpu [arguments of samples/run.sh bench-compare or bench-gpu]"
    ;;
esac
