#!/usr/bin/env bash
# Measures, and keeps the figures in ci/results/.
#   ci/bench.sh cpu [arguments of `samples/run.sh bench-compare`]
#     all-reduce on this host's CPU, beside Gloo, and Open MPI where mpicc and mpirun are there
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=ci/setup.sh
source "$root/ci/setup.sh"

peer_jars=$root/djl-collectives/target/peer
work=$root/ci/target

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

case ${1:-} in
  cpu)
    shift
    setup
    bench_cpu "$@"
    ;;
  *)
    die "usage: ci/bench.sh cpu [arguments of samples/run.sh bench-compare]"
    ;;
esac
