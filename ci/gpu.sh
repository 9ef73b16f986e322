#!/usr/bin/env bash
# Runs the tests with the JUnit tag gpu, but not soak, of all modules, and writes one summary: commit, machine, versions, and
# for each test class the tests found, succeeded, skipped (with reasons) and failed, and its seconds.
#   ci/gpu.sh [--classes REGEX] [--join] [--ranks N] [--json FILE] [--commit COMMIT] [--class-path PATH] [-- JVM options]
#     --classes     only test classes whose names with package match, for example '.*CudaP2p.*', one after the other
#     --join        adds to the classes in the file, if its commit and GPUs are the same: for runs that divide the classes, one after
#                   the other or at the same time on different GPUs
#     --ranks       ranks that share the GPU of a host with one GPU; 2 if not given
#     --json        file of the summary, not written if all tests are skipped; if not given, named after the number of GPUs and
#                   their kind, for example ci/results/gpu-tests-1xh100.json
#     --commit      the tested commit; from git if not given
#     --class-path  class path of a build made elsewhere; Maven and git are then not needed. If not given, the script
#                   builds, and CLASSPATH names DJL's libtorch for GPUs and the CUDA presets
# The tests use all GPUs, or those of CUDA_VISIBLE_DEVICES. DJLX_PYTHON=python3 runs them on the PyTorch that pip has installed.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=ci/setup.sh
source "$root/ci/setup.sh"

classes='.*' json='' join=false commit='' class_path='' ranks=''
while (($#)); do
  case $1 in
    --classes | --ranks | --json | --commit | --class-path)
      (($# > 1)) || bad_arguments "$1 needs a value; ci/gpu.sh --help lists the arguments"
      name=${1#--}
      printf -v "${name//-/_}" %s "$2"
      shift 2
      ;;
    --join)
      join=true
      shift
      ;;
    --)
      shift
      break
      ;;
    -h | --help)
      sed -n '2,/^set /{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
      exit
      ;;
    *) bad_arguments "unknown argument '$1'; ci/gpu.sh --help lists the arguments" ;;
  esac
done

# CUDA numbers GPUs as nvidia-smi does.
export CUDA_DEVICE_ORDER=PCI_BUS_ID
names=$(gpu_names)
[[ -n $names ]] ||
  die "no test ran: nvidia-smi shows no GPU${CUDA_VISIBLE_DEVICES+ of CUDA_VISIBLE_DEVICES='$CUDA_VISIBLE_DEVICES'}"
mapfile -t gpus <<<"$names"

if [[ -z $json ]]; then
  kind=${gpus[0]#NVIDIA }
  kind=${kind%% *}
  json=$root/ci/results/gpu-tests-${#gpus[@]}x${kind,,}.json
fi

# built_class_path: prints the class path of this build.
built_class_path() {
  local module
  for module in $(published_modules) samples ci/bench; do
    printf '%s:' "$root/$module/target/test-classes" "$root/$module/target/classes"
  done
  printf '%s' "${CLASSPATH:+$CLASSPATH:}"
  cat "$root/ci/bench/target/test-class-path"
}

if [[ -z $class_path ]]; then
  setup
  say "Building"
  build -Dmaven.test.skip=false -Dmaven.test.skip.exec
  class_path=$(built_class_path)
  [[ -n $commit ]] || commit=$(git -C "$root" describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null) || true
else
  use_java || command -v java >/dev/null || die "no Java $MIN_JAVA or newer found"
fi

# For ranks that share a GPU, and only for them. CUDA_DEVICE_MAX_CONNECTIONS: a hardware queue for each stream, or one rank's kernel waits
# behind another's; there are 8 by default. CUDA_MODULE_LOADING: by default the first launch of a kernel waits for running kernels of its
# GPU; if EAGER, loading a library does, and for those of all GPUs of the process.
if ((${#gpus[@]} == 1)); then
  export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-32} CUDA_MODULE_LOADING=${CUDA_MODULE_LOADING:-EAGER}
fi
use_installed_torch "$class_path"
export DJLX_FLIGHT_RECORDER_DIRECTORY=${DJLX_FLIGHT_RECORDER_DIRECTORY:-$root/ci/target/flight-records}
mkdir -p "$DJLX_FLIGHT_RECORDER_DIRECTORY"
# As Maven's tests: a test that trains a small model on the CPU takes minutes if each of many cores has a thread.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

# run_tests TAGS [OPTION...]: runs tests with the tags, and adds them to the summary. `starter` is exec, or empty.
starter=''
run_tests() {
  local tags=$1
  shift
  $starter java -Xmx4g --enable-native-access=ALL-UNNAMED "-Dtest.report=$report" -Dtest.report.join=true "-Dtest.commit=$commit" \
    ${ranks:+"-Dtest.gpu.ranks=$ranks"} "$@" -cp "$class_path" org.junit.platform.console.ConsoleLauncher execute --disable-banner \
    --disable-ansi-colors --details=testfeed --select-package org.djlx --include-tag "gpu & !soak & ($tags)" --include-classname "$classes" --fail-if-no-tests
}

scratch=$(mktemp -d)
report=$json
[[ $join == true ]] || report=$scratch/${json##*/}
touch "$scratch/started"

# finish: keeps the summary, also if the run is cut off.
finish() {
  jobs -p | xargs -r kill 2>/dev/null || true
  if [[ $report -nt $scratch/started ]]; then
    [[ $report == "$json" ]] || { mkdir -p "$(dirname "$json")" && cp "$report" "$json"; }
    say "The summary is in $json"
  fi
  rm -rf "$scratch"
}
trap finish EXIT

status=0
if [[ $classes != '.*' ]]; then
  run_tests 'any()' "$@" || status=$?
else
  # Tests with the tag beside run at the same time as the other tests, in three processes: collectives, engines, and all others.
  # Each of the three has its own folder for temporary files, where a lease of a GPU is a file. So a process does not wait for GPUs that
  # another process has leased.
  beside=()
  for classes in '.*\.collectives\..*' '.*\.engine\..*' '(?!.*\.(collectives|engine)\.).*'; do
    (
      unset CUDA_MODULE_LOADING
      tmp=$(mktemp -d -p "$scratch")
      starter=exec # The job is the JVM, which `finish` ends.
      run_tests beside "-Djava.io.tmpdir=$tmp" "-Dtest.started.jvm.args=-Djava.io.tmpdir=$tmp" "$@"
    ) &
    beside+=("$!")
  done
  classes='.*'
  run_tests '!beside & !alone' "$@" || status=$?
  for process in "${beside[@]}"; do wait "$process" || status=$?; done
  run_tests alone "$@" || status=$?
fi
exit "$status"
