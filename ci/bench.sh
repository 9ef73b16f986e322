#!/usr/bin/env bash
# Measures, and keeps the figures in ci/results/. Then `ci/bench/run.sh pages` writes them into README.md and docs/.
#   ci/bench.sh cpu [arguments of `ci/bench/run.sh bench-compare`]
#     all-reduce on this host's CPU, beside Gloo, and Open MPI where mpicc and mpirun are there; then coalesced
#     operations beside separate ones, into ci/results/cpu-coalesced.json
#   ci/bench.sh gpu [arguments of `ci/bench/run.sh bench-gpu`]
#     all-reduce and the fused operators on this host's GPUs, beside NCCL and, where python3 has it, PyTorch: with ranks
#     that are threads, then processes, whose figures go into a second file, FILE-processes.json.
#     Before, a few rows with no kernel compiled yet, into FILE-first.json: how long the first group on a machine takes.
#     JVMs compile early and by C1 alone, as docs/performance.md advises for ranks that are threads; the files name their options.
#     CLASSPATH names DJL's libtorch for GPUs and the CUDA presets. Where there is no git, --commit says what is measured
#   ci/bench.sh train [arguments of `ci/bench/run.sh bench-train`]
#     a data-parallel training step on this host's GPUs, beside one GPU alone, DJL's engine and, where python3 has it, PyTorch;
#     then a block, as `ci/bench.sh block` with the same --ranks and --commit. Of --json FILE, its figures go into FILE-block.json
#   ci/bench.sh block [arguments of `ci/bench/run.sh bench-block`]
#     a tensor-parallel transformer block, forward and backward, beside its matmuls alone, and those with its attention
#   ci/bench.sh decode [arguments of `ci/bench/run.sh bench-decode`]
#     text from a Llama: loading, steps of a batch, the first token of a long prompt, clients of the HTTP server. On GPUs, all
#     there are, one of 8B's sizes, beside PyTorch where python3 has it; where there are none a tiny one on 2 CPU ranks
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=ci/setup.sh
source "$root/ci/setup.sh"

peer_jars=$root/djl-collectives/target/peer
work=$root/ci/target

# NVSwitch's multicast can take a host out of service.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1

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
  build -Dpeer.skip=false
  gloo=(env OMP_NUM_THREADS=1 "$JAVA_HOME/bin/java" -Xmx1g
    "-Dorg.bytedeco.javacpp.cachedir=$work/gloo-cache" "-Dbench.source=$root/ci/bench/peers/GlooBench.java"
    -cp "$peer_jars/*" "$root/ci/bench/peers/GlooBench.java")
  [[ " $*" == *" --commit"* ]] || args+=(--commit "$(commit)")
  args+=(--peer "gloo=$(quoted "${gloo[@]}")")
  args+=(--version-of "gloo=$(basename "$peer_jars"/pytorch-*-linux-x86_64.jar -linux-x86_64.jar)")
  if command -v mpicc >/dev/null && command -v mpirun >/dev/null; then
    mpicc -O3 -march=native -Wall -Wextra -Werror -o "$work/mpi_bench" "$root/ci/bench/peers/mpi_bench.c"
    mpi=(mpirun --allow-run-as-root --oversubscribe --bind-to core -n 2 "$work/mpi_bench")
    args+=(--peer "openmpi=$(quoted "${mpi[@]}")")
    args+=(--version-of "openmpi=$(mpirun --version | sed -n '1s/.* //p')")
  else
    say "Open MPI is not here (openmpi-bin, libopenmpi-dev): left out"
  fi
  "$root/ci/bench/run.sh" bench-compare "${args[@]}" "$@"
  "$root/ci/bench/run.sh" bench-coalesced --json "$root/ci/results/cpu-coalesced.json" --commit "$(commit)"
}

# common_options ARG...: of a benchmark's arguments, puts --json, --ranks and --commit into the caller's variables of these
# names, and the others behind its args.
common_options() {
  while (($#)); do
    case $1 in
      --json=* | --ranks=* | --commit=*) printf -v "$(sed 's/^--//; s/=.*//' <<<"$1")" %s "${1#*=}" ;;
      --json | --ranks | --commit)
        (($# > 1)) || die "$1 needs a value"
        printf -v "${1#--}" %s "$2"
        shift
        ;;
      *) args+=("$1") ;;
    esac
    shift
  done
}

# gpus: prints how many GPUs this host has.
gpus() {
  nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true
}

# Without setup: all that is needed is Java where it has been built before.
bench_gpu() {
  local json='' ranks='' commit status=0 cold
  local -a args=()
  # Code that counts branches for C2 makes calls by two threads at once take half as long again, for thousands of calls.
  export JDK_JAVA_OPTIONS="-XX:TieredStopAtLevel=1 -XX:CompileThresholdScaling=0.25 ${JDK_JAVA_OPTIONS:-}"
  [[ " $*" == *" --torch"* ]] || args+=(--torch python3)
  commit=$(commit)
  common_options "$@"
  ranks=${ranks:-$(gpus)}
  ((ranks > 0)) || die "there is no GPU here: nvidia-smi shows none"
  # Each number of ranks has figures of its own; those of two ranks are just gpu-bench.
  [[ -n $json ]] || json=$root/ci/results/gpu-bench$( ((ranks == 2)) || printf -- -%s "$ranks").json
  args+=(--commit "$commit")
  cold=$(mktemp -d)
  DJLX_KERNELS_CACHE=$cold "$root/ci/bench/run.sh" bench-gpu --ranks "$ranks" --json "${json%.json}-first.json" --commit "$commit" \
    --bytes 4K --shapes tiny || status=$?
  rm -rf "$cold"
  "$root/ci/bench/run.sh" bench-gpu --ranks "$ranks" --json "$json" "${args[@]}" || status=$?
  "$root/ci/bench/run.sh" launch --nproc "$ranks" bench-gpu --json "${json%.json}-processes.json" "${args[@]}" || status=$?
  return "$status"
}

bench_train() {
  local json='' ranks='' commit block status=0
  local -a args=() both
  [[ " $*" == *" --torch"* ]] || args+=(--torch python3)
  commit=$(commit)
  common_options "$@"
  both=(--commit "$commit")
  [[ -z $ranks ]] || both+=(--ranks "$ranks")
  block=${json:+${json%.json}-block.json}
  "$root/ci/bench/run.sh" bench-train --json "${json:-$root/ci/results/train.json}" "${both[@]}" "${args[@]}" || status=$?
  if (($(gpus) > 0)); then
    bench_block --json "${block:-$root/ci/results/block.json}" "${both[@]}" || status=$?
  else
    say "There is no GPU here: the block, whose sizes are those of GPUs, is left out"
  fi
  return "$status"
}

bench_block() {
  local -a args=()
  [[ " $*" == *" --json"* ]] || args+=(--json "$root/ci/results/block.json")
  [[ " $*" == *" --commit"* ]] || args+=(--commit "$(commit)")
  "$root/ci/bench/run.sh" bench-block "${args[@]}" "$@"
}

bench_decode() {
  local -a args=() defaults
  local file=decode.json option gpus
  gpus=$(gpus)
  if ((gpus > 0)) && [[ " $*" != *" --device cpu"* && " $*" != *" --device=cpu"* ]]; then
    defaults=(--device=gpu "--ranks=$gpus" --model=8b --torch=python3)
  else
    defaults=(--ranks=2 --long-prompt=512)
    file=decode-cpu.json
  fi
  for option in "${defaults[@]}" "--json=$root/ci/results/$file" "--commit=$(commit)"; do
    [[ " $*" == *" ${option%%=*}"* ]] || args+=("$option")
  done
  "$root/ci/bench/run.sh" bench-decode "${args[@]}" "$@"
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
  train)
    shift
    bench_train "$@"
    ;;
  block)
    shift
    bench_block "$@"
    ;;
  decode)
    shift
    bench_decode "$@"
    ;;
  -h | --help | help)
    sed -n '2,/^set /{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
    ;;
  *)
    die "usage: ci/bench.sh cpu|gpu|train|block|decode [arguments of ci/bench/run.sh bench-compare, -gpu, -train and so on]"
    ;;
esac
