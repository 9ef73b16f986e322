#!/usr/bin/env bash
# Runs all checks and ends with one table: tests, passed, failed, and skipped by reason, per module.
#   ci/test.sh [--quick] [arguments of mvn, for example -pl samples -am]
#     --quick  answers in about 3 minutes: class maps, format, compilation without warnings, and the unit tests; without tests
#              tagged slow (they start JVMs, wait, or compute for seconds), gpu or soak, and without javadoc and kernels
#
# The full run checks: the maps of packages name each class; kernels and the GPU trace compile; no compiler warning; format;
# all tests, the soak tests for 2 seconds each (mvn -Psoak test runs them longer); javadoc; samples/quickstart-project,
# unless there are arguments of mvn.
#
# Prints nothing of a test that passes. Everything Maven prints goes to target/test.log, the log of test JVMs to */target/test-logs.
# DJLX_TEST_FORKS is the number of test JVMs at a time. By default it is 1 on a machine with GPUs, because ranks need them all;
# otherwise 1 more than the cores, because tests wait for other processes, but 4 at most.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=ci/setup.sh
source "$root/ci/setup.sh"

# NVRTC compiles the kernels when they are first used; on a machine without a GPU KernelArchitectureTest finds a broken one.
# What includes hopper.cuh runs on sm_90a only, and is compiled in the programs of ci/sanitize.sh.
check_kernels() {
  if ! command -v nvcc >/dev/null; then
    say "Kernels: not compiled, there is no nvcc"
    return 0
  fi
  "$root/ci/sanitize.sh" --compile sm_90a "$out" || die "the programs of ci/sanitize.sh do not compile"
  say "Kernels: the programs compiled that ci/sanitize.sh runs them with"
}

# Compiles ci/profile/trace.cpp where nvcc finds CUPTI, and sums up a trace in which one of two kernels ran twice.
check_profile() {
  if echo '#include <cupti.h>' | nvcc -x c++ -E - >/dev/null 2>&1; then
    nvcc -x c++ -Xcompiler -Wall,-Wextra,-Werror -c -o "$out/trace.o" "$root/ci/profile/trace.cpp" || die "ci/profile/trace.cpp does not compile"
  fi
  if ! command -v python3 >/dev/null; then
    say "ci/profile/kernels.py: not run, there is no python3"
    return 0
  fi
  printf '%s\n' 0,7,1000,3000,twice 0,7,2000,5000,once 0,7,9000,9500,twice 1,7,1,2,elsewhere 0,7,100 >"$out/trace"
  python3 "$root/ci/profile/kernels.py" "$out/trace" --around twice >"$out/sums"
  diff - "$out/sums" <<EOF || die "ci/profile/kernels.py is wrong"
GPU 0: 0.009 ms, of which 0.004 ms busy (52.9%), 3 records
        ms  share   count   mean us  name
     0.003  35.3%       1       3.0  once
     0.003  29.4%       2       1.2  twice
EOF
}

# Builds samples/quickstart-project as its users do, from the jars that have just been built, and runs it. They are installed
# into a repository of its own, which has all else from the one that the build used.
check_quickstart_project() (
  temporary=$(mktemp -d)
  trap 'rm -rf "$temporary"' EXIT
  repository=$(tr : '\n' <"$root/samples/target/class-path" | sed -n 's|/ai/djl/api/.*||p')
  mkdir -p "$temporary/repository/org/djlx"
  for directory in "$repository"/* "$repository"/org/*; do
    [[ -e $temporary/repository${directory#"$repository"} || $directory -ef $repository/org/djlx ]] ||
      ln -s "$directory" "$temporary/repository${directory#"$repository"}"
  done
  version=$(sed -n 's|^  <version>\(.*\)</version>$|\1|p' "$root/pom.xml")
  # What `mvn install` does, without a second build.
  for module in djl-collectives-parent native-ops djl-collectives fused-ops; do
    directory=$temporary/repository/org/djlx/$module/$version
    mkdir -p "$directory"
    if [[ $module == djl-collectives-parent ]]; then
      cp "$root/pom.xml" "$directory/$module-$version.pom"
    else
      cp "$root/$module/pom.xml" "$directory/$module-$version.pom"
      cp "$root/$module/target/$module-$version"{,-sources,-javadoc}.jar "$directory"
    fi
  done
  cp -r "$root/samples/quickstart-project" "$temporary/quickstart"
  maven -q -o package -f "$temporary/quickstart/pom.xml" -Dmaven.repo.local="$temporary/repository"
  "$JAVA_HOME/bin/java" -cp "$temporary/quickstart/target/classes:$(<"$temporary/quickstart/target/class-path")" \
    com.example.Quickstart >"$temporary/output" || die "samples/quickstart-project failed: $(<"$temporary/output")"
  say "samples/quickstart-project builds with version $version of the artefacts, and runs"
)

# The map of a package, in its package-info, names each of its classes.
check_maps() {
  local map class missing=()
  while read -r map; do
    for class in "$(dirname "$map")"/*.java; do
      class=$(basename "$class" .java)
      [[ $class == package-info ]] || grep -qw "$class" "$map" || missing+=("${map#"$root/"}: $class")
    done
  done < <(grep -rlE '<pre>|<li>|Package-private' --include=package-info.java "$root"/{*,ci/bench}/src/main 2>/dev/null)
  ((${#missing[@]} == 0)) || die "classes that the map of their package does not name:$(printf '\n  %s' "${missing[@]}")"
}

# test_reports: prints the XML reports of this run, module by module.
test_reports() {
  local module
  for module in native-ops djl-collectives fused-ops samples ci/bench; do
    [[ ! -d $root/$module/target/surefire-reports ]] ||
      find "$root/$module/target/surefire-reports" -name 'TEST-*.xml' -newer "$out/start" | LC_ALL=C sort
  done
}

# report: prints failed tests and the table; fails if a test failed.
report() {
  local -a files
  mapfile -t files < <(test_reports)
  if ((${#files[@]} == 0)); then
    printf 'No test ran.\n'
    return 0
  fi
  awk -v root="$root/" -f "$root/ci/test-report.awk" "${files[@]}"
}

# run_maven ARG...: runs Maven with its output in $log. Prints the failures and the table; on failure also Maven's errors.
run_maven() {
  local status=0 tests=0
  maven -ntp "$@" >"$log" 2>&1 || status=$?
  report || tests=1
  ((status != 0)) || return "$tests"
  # Without a failed test something else went wrong: compilation, format, javadoc, a test JVM that crashed or hung.
  if ((tests == 0)); then
    printf '\nMaven failed:\n'
    grep -aE '^\[ERROR\]' "$log" | awk '!seen[$0]++' | head -40 || true
    printf '\nThe last lines of %s:\n' "$log"
    tail -n 40 "$log"
  fi
  grep -aE '^\[INFO\] DJL Collectives.* (FAILURE|SKIPPED)' "$log" || true
  return 1
}

# elapsed: the time since the script began, as minutes:seconds.
elapsed() {
  printf '%d:%02d' $((SECONDS / 60)) $((SECONDS % 60))
}

quick=''
if [[ ${1:-} == --quick ]]; then
  quick=1
  shift
fi

setup
out=$(mktemp -d)
trap 'jobs -p | xargs -r kill 2>/dev/null; rm -rf "$out"' EXIT
touch "$out/start"
log=$root/target/test.log
mkdir -p "$root/target"
forks=${DJLX_TEST_FORKS:-}
if [[ -z $forks ]]; then
  forks=$(($(nproc) + 1))
  ((forks < 4)) || forks=4
  ! nvidia-smi -L 2>/dev/null | grep -q '^GPU' || forks=1
fi
options=("-Dtest.forks=$forks")
check_maps

if [[ -n $quick ]]; then
  say "Compiling and running the quick tests, log in target/test.log"
  run_maven test "${options[@]}" -Dtest.excludedGroups='soak | gpu | slow' "$@" || die "failed after $(elapsed)"
  say "All quick checks passed in $(elapsed); ci/test.sh runs the rest"
  exit
fi

check_profile
# Beside the tests, which wait for other processes for much of their time.
check_kernels >"$out/kernels.log" 2>&1 &
kernels=$!
say "Building and testing with $forks test JVMs, log in target/test.log"
# One invocation: in a second one, without `install`, a module would not find the others' jars. Javadoc is part of it.
run_maven verify "${options[@]}" -Dtest.excludedGroups= -Dtest.soak.seconds=2 "$@" || die "failed after $(elapsed)"
wait "$kernels" || die "kernels: $(<"$out/kernels.log")"
tail -1 "$out/kernels.log"
(($#)) || check_quickstart_project
say "All checks passed in $(elapsed)"
