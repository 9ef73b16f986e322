#!/usr/bin/env bash
# Measures, and writes the results to ci/results/. Then `ci/bench/run.sh pages` writes them into README.md and docs/.
#   ci/bench.sh cpu [arguments of `ci/bench/run.sh bench-compare`]
#     all-reduce on this host's CPU by shm, beside Gloo and, if mpicc and mpirun are installed, Open MPI and backend mpi on
#     it
#   ci/bench.sh gpu [arguments of `ci/bench/run.sh bench-gpu`]
#     all-reduce and the fused operators on this host's GPUs, beside NCCL and, if python3 has it, PyTorch. Runs three times:
#     with an empty kernel cache, into FILE-first.json: how long the first group on a machine takes;
#     with a thread a rank, into FILE.json; with a process a rank, into FILE-processes.json.
#     JVMs compile early and with C1 only; the reports name the options.
#     CLASSPATH names DJL's libtorch for GPUs and the CUDA presets. Without git, --commit names the measured commit
#   ci/bench.sh shared [--commit COMMIT]
#     ranks that share GPUs, without NCCL: 8 ranks on two GPUs, if there are two, into gpu-bench-shared.json; then 2 ranks on one
#     GPU, into gpu-bench-one.json
#   ci/bench.sh train [arguments of `ci/bench/run.sh bench-train`]
#     a data-parallel training step on this host's GPUs, beside one GPU alone, DJL's engine and, if python3 has it, PyTorch;
#     `ci/bench.sh block` with the same --ranks and --commit, into FILE-block.json; then, or only, if there is no GPU, a step
#     of 2 CPU ranks with a small model, which shows the fixed cost of a step, into FILE-cpu.json
#   ci/bench.sh block [arguments of `ci/bench/run.sh bench-block`]
#     a tensor-parallel transformer block, forward and backward, beside its matmuls alone, and those with its attention
#   ci/bench.sh decode [arguments of `ci/bench/run.sh bench-decode`]
#     text from a Llama: loading, decode steps, the first token of a long prompt, clients of the HTTP server. On all GPUs of
#     the host, a model of 8B's sizes beside PyTorch, on one GPU also by torch.compile, if python3 has it; then without PyTorch and
#     with fp8 weights and cache, into FILE-fp8.json; on one GPU also with int4 weights for few sequences, into FILE-int4.json.
#     Not for models with experts, which have no fp8 weights: use `ci/bench/run.sh bench-decode --model 30b-a3b-12l`.
#     Without GPUs, a tiny model on 2 CPU ranks, then `ci/bench.sh llama-cpp` if npm is installed
#     DJLX_CLASS_PATH names the class path of a build made elsewhere: ci/ and Java are then enough
#   ci/bench.sh read
#     how fast a Hopper GPU reads memory by the access patterns of decode kernels; with ncu, also by its DRAM counters. Needs nvcc
#   ci/bench.sh llama-cpp [SIZE]
#     a random Llama on CPUs, 110m unless given, beside llama.cpp, which npm downloads, and, with JDK 21 or newer, Jlama; in turns, for
#     each type of weights, with 1 and 2 threads and with 2 ranks; prints a table for each
# FILE.json is that of --json, by default a file in ci/results, which git tracks: give another one to try.
# All GPUs are used, or those of CUDA_VISIBLE_DEVICES. DJLX_PYTHON=python3 measures on the PyTorch that pip has installed, and beside it;
# CLASSPATH then names the CUDA presets (docs/performance.md).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=ci/setup.sh
source "$root/ci/setup.sh"

peer_jars=$root/djl-collectives/target/peer
work=$root/ci/target
peer_python=${DJLX_PYTHON:-python3}

# commit: prints the state of the code, with "-dirty" if files differ from it; nothing without git.
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
    # The backend mpi, on the same MPI. `bench` takes its rank from torchrun's variables.
    mpi=(mpirun --allow-run-as-root --oversubscribe --bind-to none -n 2 bash -c
      'RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE OMP_NUM_THREADS=1 exec "$@"' rank
      "$root/ci/bench/run.sh" bench --backend mpi --bind)
    args+=(--peer "mpi=$(quoted "${mpi[@]}")")
  else
    say "Open MPI is not measured: install openmpi-bin and libopenmpi-dev"
  fi
  "$root/ci/bench/run.sh" bench-compare "${args[@]}" "$@"
}

# common_options ARG...: sets the caller's variables json, ranks and commit from these options, and appends the other
# arguments to its array args.
common_options() {
  while (($#)); do
    case $1 in
      --json=* | --ranks=* | --commit=*) printf -v "$(sed 's/^--//; s/=.*//' <<<"$1")" %s "${1#*=}" ;;
      --json | --ranks | --commit)
        (($# > 1)) || bad_arguments "$1 needs a value; ci/bench.sh --help lists the arguments"
        printf -v "${1#--}" %s "$2"
        shift
        ;;
      *) args+=("$1") ;;
    esac
    shift
  done
}

# gpus: prints the number of GPUs of this host.
gpus() {
  gpu_names | wc -l
}

# compile_early: makes JVMs compile early and with C1 only. Otherwise C1's code counts calls for C2, and during the first thousands
# of calls, simultaneous calls of two threads take 1.5 times as long.
compile_early() {
  export JDK_JAVA_OPTIONS="-XX:TieredStopAtLevel=1 -XX:CompileThresholdScaling=0.25 ${JDK_JAVA_OPTIONS:-}"
}

# Does not call setup: a machine to which a built checkout was copied needs Java only.
bench_gpu() {
  local json='' ranks='' commit status=0 cold
  local -a args=()
  compile_early
  [[ " $*" == *" --torch"* ]] || args+=(--torch "$peer_python")
  commit=$(commit)
  common_options "$@"
  ranks=${ranks:-$(gpus)}
  ((ranks > 0)) || die "there is no GPU here: nvidia-smi shows none"
  # One file for each number of ranks; that of two ranks is gpu-bench.json.
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

bench_shared() {
  local status=0 results=$root/ci/results
  [[ " $*" == *" --commit"* ]] || set -- --commit "$(commit)" "$@"
  compile_early
  export CUDA_MODULE_LOADING=EAGER CUDA_DEVICE_MAX_CONNECTIONS=32
  if (($(gpus) > 1)); then
    CUDA_VISIBLE_DEVICES=0,1 "$root/ci/bench/run.sh" bench-gpu --ranks 8 --shapes tiny --bytes 4K,64K \
      --json "$results/gpu-bench-shared.json" "$@" || status=$?
  fi
  CUDA_VISIBLE_DEVICES=0 "$root/ci/bench/run.sh" bench-gpu --ranks 2 --shapes tiny,norm:8x4096,2048x2048x2048 --bytes 1K,64K,1M \
    --json "$results/gpu-bench-one.json" "$@" || status=$?
  return "$status"
}

bench_train() {
  local json=$root/ci/results/train.json block=$root/ci/results/block.json ranks='' commit option status=0
  local -a args=() both
  commit=$(commit)
  common_options "$@"
  [[ $json == "$root/ci/results/train.json" ]] || block=${json%.json}-block.json
  if (($(gpus) > 0)); then
    [[ " $*" == *" --torch"* ]] || args+=(--torch "$peer_python")
    both=(--commit "$commit")
    [[ -z $ranks ]] || both+=(--ranks "$ranks")
    "$root/ci/bench/run.sh" bench-train --json "$json" "${both[@]}" "${args[@]}" || status=$?
    bench_block --json "$block" "${both[@]}" || status=$?
    args=()
    ranks=''
  fi
  for option in --torch="$peer_python" --layers=3 --width=128 --hidden=128 --rows=32 --steps=500 --rounds=4; do
    [[ " ${args[*]}" == *" ${option%%=*}"* ]] || args+=("$option")
  done
  CUDA_VISIBLE_DEVICES='' OMP_NUM_THREADS=1 "$root/ci/bench/run.sh" bench-train --json "${json%.json}-cpu.json" \
    --ranks "${ranks:-2}" --commit "$commit" "${args[@]}" || status=$?
  return "$status"
}

bench_block() {
  local -a args=()
  [[ " $*" == *" --json"* ]] || args+=(--json "$root/ci/results/block.json")
  [[ " $*" == *" --commit"* ]] || args+=(--commit "$(commit)")
  "$root/ci/bench/run.sh" bench-block "${args[@]}" "$@"
}

bench_decode() {
  local json='' ranks='' commit count option status=0 batches=--batches=1,8,16,32,64,128,256 clients=--clients=1,64,256
  local -a args=() all few defaults torch=()
  commit=$(commit)
  count=$(gpus)
  common_options "$@"
  [[ " ${args[*]}" != *" --device cpu"* && " ${args[*]}" != *" --device=cpu"* ]] || count=0
  ranks=${ranks:-$((count > 0 ? count : 2))}
  args+=(--ranks="$ranks" --commit="$commit")
  if ((count > 0)); then
    defaults=(--device=gpu --model=8b "$batches" "$clients" --answer-tokens=256)
    json=${json:-$root/ci/results/decode.json}
    [[ " ${args[*]}" == *" --torch"* ]] || torch=(--torch="$peer_python")
  else
    defaults=(--long-prompt=512)
    json=${json:-$root/ci/results/decode-cpu.json}
  fi
  all=("${args[@]}")
  for option in "${defaults[@]}"; do
    [[ " ${args[*]}" == *" ${option%%=*}"* ]] || all+=("$option")
  done
  "$root/ci/bench/run.sh" bench-decode "${all[@]}" "${torch[@]}" --json="$json" || status=$?
  if ((count > 0)); then
    [[ " ${args[*]}" != *" --quantize"* && " ${args[*]}" != *" --kv-cache-dtype"* ]] || return "$status"
    "$root/ci/bench/run.sh" bench-decode "${all[@]}" --quantize=fp8 --kv-cache-dtype=fp8 --json="${json%.json}-fp8.json" ||
      status=$?
    [[ $ranks == 1 ]] || return "$status" # Weights of 4 bits are for few sequences on one GPU.
    few=("${all[@]/#$batches/--batches=1,8,32}")
    few=("${few[@]/#$clients/--clients=1,8}")
    "$root/ci/bench/run.sh" bench-decode "${few[@]}" --quantize=int4 --json="${json%.json}-int4.json" || status=$?
  elif command -v npm >/dev/null; then
    bench_llama_cpp
  else
    say "llama.cpp is not measured: install Node.js 20 or newer with npm"
  fi
  return "$status"
}

# jlama_peer FOLDER: fetches Jlama and writes FOLDER/peer.sh, which runs it; appends the option that names it to the caller's
# array jlama. Nothing without a JDK of 21 or newer.
jlama_peer() {
  local java jar
  java=$(newest_java)
  if (($(java_major "$java") < 21)); then
    say "Jlama is not measured: install JDK 21 or newer"
    return
  fi
  cp "$root/ci/bench/peers/jlama-pom.xml" "$work/jlama-pom.xml"
  mvn -q -f "$work/jlama-pom.xml" dependency:copy-dependencies -DoutputDirectory="$1"
  jar=$(basename "$1"/jlama-core-*.jar .jar)
  {
    printf 'exec '
    quoted "$java/bin/java" --add-modules jdk.incubator.vector --enable-native-access=ALL-UNNAMED "-Djlama.version=${jar#jlama-core-}" \
      -cp "$1/*" "$root/ci/bench/peers/JlamaPeer.java"
    printf '"$@"\n'
  } >"$1/peer.sh"
  jlama+=(--jlama "$1/peer.sh")
}

bench_llama_cpp() {
  local peer=$work/llama-cpp results=$root/ci/results/llama-cpp size=${1:-110m} case threads commit
  local -a jlama=()
  commit=$(commit) # before the first results change files
  mkdir -p "$peer" "$results"
  cp "$root"/ci/bench/peers/{*.mjs,package.json} "$peer"
  # Its script would compile where no binary fits.
  npm install --prefix "$peer" --no-audit --no-fund --ignore-scripts --prefer-offline --silent
  jlama_peer "$work/jlama"
  for case in "float32 none" "bfloat16 none" "bfloat16 int8" "bfloat16 int4"; do
    for threads in "1 1" "2 1" "1 2"; do
      # shellcheck disable=SC2086 # words
      set -- $case $threads
      OMP_NUM_THREADS=$3 "$root/ci/bench/run.sh" bench-llama-cpp "$peer/llama_cpp_peer.mjs" --model "$size" --type "${1^^}" \
        --quantize "${2^^}" --ranks "$4" ${jlama[@]+"${jlama[@]}"} --json "$results/$size-$1-$2-threads$3-ranks$4.json" --commit "$commit"
    done
  done
}

bench_read() {
  PATH=$PATH:/usr/local/cuda/bin
  command -v nvcc >/dev/null || die "nvcc not found: install the CUDA toolkit"
  mkdir -p "$work"
  nvcc -gencode arch=compute_90a,code=sm_90a -std=c++17 -O2 -Werror all-warnings -I "$root/native-ops/src/main/resources/org/djlx/nativeops" \
    -o "$work/read" "$root/ci/bench/peers/read.cu"
  "$work/read"
  if command -v ncu >/dev/null; then
    ncu --metrics dram__bytes_read.sum,dram__bytes_read.sum.per_second,dram__throughput.avg.pct_of_peak_sustained_elapsed \
      --kernel-name regex:'bulk|boxes|lanes|loads' "$work/read" once
  else
    say "The DRAM counters are not read: ncu not found"
  fi
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
  shared)
    shift
    bench_shared "$@"
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
  read)
    bench_read
    ;;
  llama-cpp)
    shift
    setup
    bench_llama_cpp "$@"
    ;;
  -h | --help | help)
    sed -n '2,/^set /{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
    ;;
  *)
    bad_arguments "the first argument must be cpu, gpu, shared, train, block, decode, read or llama-cpp, not '${1:-}'; ci/bench.sh --help explains them"
    ;;
esac
