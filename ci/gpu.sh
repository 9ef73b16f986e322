#!/usr/bin/env bash
# Runs the tests on GPUs, those with the JUnit tag gpu but not soak, of all modules, and writes one summary: commit, machine, versions,
# and for each test class how many were found, succeeded, were skipped (why) and failed, and the seconds it took.
#   ci/gpu.sh [--classes REGEX] [--ranks N] [--json FILE] [--commit COMMIT] [--class-path PATH] [-- JVM options]
#     --classes     only test classes whose whole names match, for example '.*CudaP2p.*'
#     --ranks       where there is one GPU, how many ranks share it; 2 unless told
#     --json        where the summary goes, unless all were skipped; ci/results/gpu-tests.json unless told
#     --commit      what is tested; git tells unless told
#     --class-path  classes, test classes and all they need, where they were built elsewhere: then neither Maven nor git
#                   is used. Otherwise they are built here, and CLASSPATH names DJL's libtorch for GPUs and the CUDA presets
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=ci/setup.sh
source "$root/ci/setup.sh"

classes='.*' json=$root/ci/results/gpu-tests.json commit='' class_path='' ranks=''
while (($#)); do
  case $1 in
    --classes | --ranks | --json | --commit | --class-path)
      (($# > 1)) || die "$1 needs a value"
      name=${1#--}
      printf -v "${name//-/_}" %s "$2"
      shift 2
      ;;
    --)
      shift
      break
      ;;
    *) die "unknown argument $1; the head of ci/gpu.sh says what there is" ;;
  esac
done

nvidia-smi -L 2>/dev/null | grep -q '^GPU' || die "there is no GPU here: nvidia-smi shows none; nothing was tested"

# built_class_path: prints the class path of what is built here.
built_class_path() {
  local module
  for module in native-ops djl-collectives fused-ops samples ci/bench; do
    printf '%s:' "$root/$module/target/test-classes" "$root/$module/target/classes"
  done
  printf '%s' "${CLASSPATH:+$CLASSPATH:}"
  cat "$root/ci/bench/target/test-class-path"
}

if [[ -z $class_path ]]; then
  setup
  say "Building"
  build -Dmaven.test.skip=false -DskipTests
  class_path=$(built_class_path)
  [[ -n $commit ]] || commit=$(git -C "$root" describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null) || true
else
  use_java || die "no JDK $MIN_JAVA or newer found"
fi

# Where ranks share a GPU, their streams must not share hardware queues, of which there are 8 otherwise: one rank would wait in another's.
# And a kernel must be there when it is launched first: to load it may wait for kernels of other ranks, which wait for this one.
if [[ $(nvidia-smi -L 2>/dev/null | grep -c '^GPU') == 1 ]]; then
  export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-32} CUDA_MODULE_LOADING=${CUDA_MODULE_LOADING:-EAGER}
fi
export DJLX_FLIGHT_RECORDER_DIRECTORY=${DJLX_FLIGHT_RECORDER_DIRECTORY:-$root/ci/target/flight-records}
mkdir -p "$DJLX_FLIGHT_RECORDER_DIRECTORY"
status=0
before=$(stat -c %y "$json" 2>/dev/null) || true
java -Xmx4g "-Dtest.report=$json" "-Dtest.commit=$commit" ${ranks:+"-Dtest.gpu.ranks=$ranks"} "$@" -cp "$class_path" \
  org.junit.platform.console.ConsoleLauncher execute --disable-banner --disable-ansi-colors --select-package org.djlx --include-tag gpu --exclude-tag soak \
  --include-classname "$classes" --fail-if-no-tests || status=$?
after=$(stat -c %y "$json" 2>/dev/null) || true
[[ $after == "$before" ]] || say "The summary is in $json"
exit "$status"
