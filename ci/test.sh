#!/usr/bin/env bash
# Runs all checks and ends with one table: tests, passed, failed, and skipped by reason, per module.
#   ci/test.sh [--quick] [arguments of mvn, for example -pl samples -am]
#   ci/test.sh --help
#     --quick  answers in about 10 minutes on 2 cores: class maps, format, compilation without warnings, and the unit tests; without tests
#              tagged slow (they start JVMs, wait, or compute for seconds), gpu or soak, and without javadoc and kernels
#
# The full run checks: the maps of packages name each class; kernels and the GPU trace compile; no compiler warning; format;
# all tests, the soak tests for 2 seconds each (mvn -Psoak test runs them longer); unless there are arguments of mvn, also
# the javadoc of ci/javadoc.sh, the bundle of ci/release.sh, samples/quickstart-project and samples/spark-project, and some tests on
# the newest JDK of the machine.
#
# As root on Debian the full run installs openmpi-bin, mpich and slurm-wlm, for the tests of backend mpi and of launchers. The first full run downloads Spark
# (140 MB), for samples/spark-project.
#
# Prints nothing of a test that passes. Everything Maven prints goes to target/test.log, the log of test JVMs to */target/test-logs.
# DJLX_TEST_FORKS is the number of test JVMs at a time. By default it is 1 on a machine with GPUs, because ranks need them all;
# otherwise 1 more than the cores, because tests wait for other processes, but 4 at most.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=ci/setup.sh
source "$root/ci/setup.sh"
export DJLX_WERROR=1 # for native-ops/src/main/cpp/build.sh

# Compiles the kernels that include hopper.cuh, most in the programs of ci/sanitize.sh, and the benchmark of reads;
# KernelArchitectureTest compiles the other kernels.
check_kernels() {
  if ! command -v nvcc >/dev/null; then
    say "Kernels: not compiled, nvcc not found"
    return 0
  fi
  "$root/ci/sanitize.sh" --compile sm_90a "$out" >"$out/sanitize.log" 2>&1 ||
    die "the programs of ci/sanitize.sh do not compile: $(tail -n 40 "$out/sanitize.log")"
  local bits kernels=$root/native-ops/src/main/resources/org/djlx/nativeops
  local -a compile=(nvcc -arch=sm_90a -std=c++17 -Werror all-warnings -I "$kernels")
  "${compile[@]}" -o "$out/read" "$root/ci/bench/peers/read.cu" || die "ci/bench/peers/read.cu does not compile"
  for bits in 16 8 4; do
    "${compile[@]}" -maxrregcount=72 -cubin "-DWEIGHT_BITS=$bits" -o "$out/chain" "$kernels/decoder/chain.cu" ||
      die "decoder/chain.cu does not compile with WEIGHT_BITS=$bits"
  done
  for bits in 16 8; do
    "${compile[@]}" -cubin "-DWEIGHT_BITS=$bits" -o "$out/wide" "$kernels/decoder/wide_matmul.cu" ||
      die "decoder/wide_matmul.cu does not compile with WEIGHT_BITS=$bits"
  done
  "${compile[@]}" -cubin -o "$out/wide" "$kernels/decoder/wide_experts.cu" || die "decoder/wide_experts.cu does not compile"
  say "Kernels: the programs of ci/sanitize.sh, ci/bench/peers/read.cu and decoder's chain, wide matmul and wide experts compile"
}

# Compiles ci/profile/trace.cpp if nvcc finds CUPTI, and checks the sums of ci/profile/kernels.py over a small trace.
check_profile() {
  if echo '#include <cupti.h>' | nvcc -x c++ -E - >/dev/null 2>&1; then
    nvcc -x c++ -Xcompiler -Wall,-Wextra,-Werror -c -o "$out/trace.o" "$root/ci/profile/trace.cpp" || die "ci/profile/trace.cpp does not compile"
  fi
  if ! command -v python3 >/dev/null; then
    say "ci/profile/kernels.py: not run, python3 not found"
    return 0
  fi
  printf '%s\n' 0,7,1000,3000,twice 0,7,2000,5000,once 0,7,9000,9500,twice 1,7,1,2,elsewhere 0,7,100 >"$out/trace"
  python3 "$root/ci/profile/kernels.py" "$out/trace" --around twice >"$out/sums"
  diff - "$out/sums" <<EOF || die "ci/profile/kernels.py prints other sums (> in the difference above) than expected (<)"
GPU 0: 0.009 ms, of which 0.004 ms busy (52.9%), 3 records
        ms  share   count   mean us  name
     0.003  35.3%       1       3.0  once
     0.003  29.4%       2       1.2  twice
EOF
}

# Installs the project as users do, from the copy of its sources in $out/source, and leaves its jars there for compare_builds. Then builds
# the projects to copy, samples/quickstart-project and samples/spark-project, from the installed jars, and runs them, and some tests on the
# newest JDK. The temporary Maven repository links to all artefacts but ours; what plugins the build lacks, it downloads.
check_installed() {
  temporary=$out/installed
  repository=$(tr : '\n' <"$root/samples/target/class-path" | sed -n 's|/ai/djl/api/.*||p')
  mkdir -p "$temporary/repository/org/djlx"
  for directory in "$repository"/* "$repository"/org/*; do
    [[ -e $temporary/repository${directory#"$repository"} || $directory -ef $repository/org/djlx ]] ||
      ln -s "$directory" "$temporary/repository${directory#"$repository"}"
  done
  maven -q install -DskipTests -f "$out/source/pom.xml" -Dmaven.repo.local="$temporary/repository"
  cp -r "$root/samples/quickstart-project" "$temporary/quickstart"
  maven -q -o package -f "$temporary/quickstart/pom.xml" -Dmaven.repo.local="$temporary/repository"
  "$JAVA_HOME/bin/java" -cp "$temporary/quickstart/target/classes:$(<"$temporary/quickstart/target/class-path")" \
    com.example.Quickstart >"$temporary/output" || die "samples/quickstart-project failed: $(<"$temporary/output")"
  say "samples/quickstart-project builds with version $version of the artefacts, and runs"
  check_spark_project
}

# The jars of check_installed must be the same bytes as those of this build.
compare_builds() {
  local module jar
  for module in $(published_modules); do
    jar=$module/target/$module-$version.jar
    cmp "$root/$jar" "$out/source/$jar" || die "two builds of $module differ"
  done
  say "A second build, with -DskipTests, makes the same jars"
}

# Builds samples/spark-project with the temporary Maven repository of check_installed, runs its tests and then its example: both
# start two executors. Its Spark jars, if downloaded, move to the user's repository.
check_spark_project() (
  cp -r "$root/samples/spark-project" "$temporary/spark"
  cd "$temporary/spark"
  rm -rf target # May hold jars of another version of Spark.
  # Short programs on few cores: compiling less saves a third of the time.
  export SPARK_HOME=$PWD/target SPARK_SCALA_VERSION=2.13 JDK_JAVA_OPTIONS='-XX:TieredStopAtLevel=1 -XX:+UseSerialGC'
  {
    maven -ntp package -f "$PWD/pom.xml" -Dmaven.repo.local="$temporary/repository" &&
      timeout 900 "$JAVA_HOME/bin/java" @java-options -cp 'target/jars/*:target/spark-ranks-1.0.jar' com.example.CircleOnSpark
  } >output 2>&1 || die "samples/spark-project failed: $(tail -n 60 output)"
  for directory in "$temporary/repository"/{*,org/*}; do
    [[ -L $directory || $directory == */org || $directory == */org/djlx ]] || mv "$directory" "$repository${directory#"$temporary/repository"}"
  done
  say "samples/spark-project trains on two Spark executors: $(tail -n 1 output)"
)

# Runs some of the tests on the newest JDK of this machine: native calls, the contract suite on shm, stores, fused operators and text
# generation. native-ops is its jar, whose classes for Java 22 call libtorch through java.lang.foreign. No native access may cause a warning.
check_newest_java() {
  local newest module classes class_path jar
  newest=$(newest_java)
  if (($(java_major "$newest") < 22)); then
    say "JDKs of version 22 and newer: none found"
    return 0
  fi
  jar=$out/source/native-ops/target/native-ops-$version.jar
  "$newest/bin/jar" --validate --file "$jar" || die "the classes for Java 22 in $jar have other public methods than those for Java 17"
  class_path=$jar:$root/native-ops/target/test-classes:
  for module in $(published_modules | grep -vx native-ops); do
    class_path+=$root/$module/target/test-classes:$root/$module/target/classes:
  done
  class_path+=$test_class_path
  while read -r module classes; do
    (cd "$root/$module" && "$newest/bin/java" -Xmx2g --enable-native-access=ALL-UNNAMED -Dtest.foreign=true -cp "$class_path" \
      org.junit.platform.console.ConsoleLauncher execute --disable-banner --disable-ansi-colors --details=summary --fail-if-no-tests \
      --select-package org.djlx --include-classname "$classes" --exclude-tag 'slow | gpu | soak | clients') >"$out/newest.log" 2>&1 ||
      die "tests of $module fail on $newest:"$'\n'"$(sed -n '/^Failures/,$p' "$out/newest.log")"
    ! grep -q 'WARNING: A restricted method' "$out/newest.log" || die "native access warns on $newest: $(grep -A2 'A restricted' "$out/newest.log")"
  done <<EOF
native-ops .*\.nativeops\.torch\..*
djl-collectives .*\.(ShmThreadsTest|TcpStoreTest|SafetensorsTest)
fused-ops .*\.FusedOpsTest
text-generation .*\.TextEngineTest
EOF
  say "Some of the tests pass on $newest, too"
}

# What needs no test: the second build and what runs on it, and the javadoc.
check_built() {
  check_installed
  check_newest_java
  "$root/ci/javadoc.sh" >"$out/javadoc.log" 2>&1 || die "ci/javadoc.sh failed: $(<"$out/javadoc.log")"
}

# The map of a package, in its package-info, names each of its classes.
check_maps() {
  local map class missing=()
  while read -r map; do
    for class in "$(dirname "$map")"/*.java; do
      class=$(basename "$class" .java)
      [[ $class == package-info ]] || grep -qw "$class" "$map" || missing+=("${map#"$root/"}: $class")
    done
  done < <(grep -rlE '<pre>|<li>|Package-private' --include=package-info.java "$root"/{*,ci/bench}/src/main 2>/dev/null)
  ((${#missing[@]} == 0)) || die "classes missing in the map of their package-info:$(printf '\n  %s' "${missing[@]}")"
}

# test_reports: prints the XML reports of this run, module by module.
test_reports() {
  local module
  for module in $(published_modules) samples ci/bench; do
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

# compile ARG...: compiles all modules and their tests; on failure prints Maven's errors. What it downloads and writes lets the jobs beside
# the tests begin.
compile() {
  maven -ntp process-test-classes "$@" >"$log" 2>&1 || {
    maven_failed
    return 1
  }
}

# maven_failed: prints the errors in $log, and its end.
maven_failed() {
  printf '\nMaven failed:\n'
  grep -aE '^\[ERROR\]' "$log" | awk '!seen[$0]++' | head -40 || true
  printf '\nThe last lines of %s:\n' "$log"
  tail -n 40 "$log"
}

# run_maven ARG...: runs Maven with its output in $log. Prints the failures and the table; on failure also Maven's errors.
run_maven() {
  local status=0 tests=0
  # All modules depend on native-ops: with --fail-at-end alone its failed test would leave out all others.
  maven -ntp --fail-at-end -Dmaven.test.failure.ignore=true "$@" >"$log" 2>&1 || status=$?
  report || tests=1
  if ((status == 0 && tests == 0)) && grep -aqE '^\[ERROR\] *(There (are test failures|was a timeout)|.*forked VM terminated)' "$log"; then
    status=1 # A test JVM that crashed or hung, so that the reports know nothing of it.
  fi
  ((status != 0)) || return "$tests"
  # Without a failed test something else went wrong: compilation, format, javadoc, a test JVM that crashed or hung.
  ((tests != 0)) || maven_failed
  grep -aE '^\[INFO\] DJL Collectives.* (FAILURE|SKIPPED)' "$log" || true
  return 1
}

# beside NAME COMMAND...: starts a command beside the tests, in most of the CPU time that they leave; joined waits for it.
beside() {
  local name=$1
  shift
  set -m # A process group of its own, which the script's end kills.
  (
    renice -n 5 "$BASHPID" >/dev/null # No less: on a busy machine its timeouts would pass.
    "$@"
  ) </dev/null >"$out/$name.log" 2>&1 &
  jobs_beside[$name]=$!
  set +m
}

# joined NAME: waits for a command of beside, and prints what it said.
joined() {
  wait "${jobs_beside[$1]}" || die "$1 failed after $(elapsed): $(<"$out/$1.log")"
  unset "jobs_beside[$1]"
  grep '^==> ' "$out/$1.log" >&2 || true
}

# finish: ends the commands of beside that run, and removes the temporary files.
finish() {
  local group
  for group in "${jobs_beside[@]}"; do
    for _ in {1..50}; do # A JVM that ends still writes.
      kill -- "-$group" 2>/dev/null || break
      sleep 0.1
    done
  done
  rm -rf "$out"
}

# elapsed: the time since the script began, as minutes:seconds.
elapsed() {
  printf '%d:%02d' $((SECONDS / 60)) $((SECONDS % 60))
}

if [[ ${1:-} == --help || ${1:-} == -h ]]; then
  sed -n '2,/^set /{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  exit
fi
quick=''
if [[ ${1:-} == --quick ]]; then
  quick=1
  shift
fi

setup
out=$(mktemp -d)
declare -A jobs_beside=()
trap finish EXIT
touch "$out/start"
log=$root/target/test.log
mkdir -p "$root/target"
forks=${DJLX_TEST_FORKS:-}
if [[ -z $forks ]]; then
  forks=$(($(nproc) + 1))
  ((forks < 4)) || forks=4
  [[ $(nvidia-smi -L 2>/dev/null) != GPU* ]] || forks=1
fi
options=("-Dtest.forks=$forks")
check_maps

if [[ -n $quick ]]; then
  say "Compiling and running the quick tests, log in target/test.log"
  run_maven test "${options[@]}" -Dtest.excludedGroups='soak | gpu | slow | clients' "$@" || die "failed after $(elapsed)"
  say "All quick checks passed in $(elapsed); ci/test.sh runs the rest"
  exit
fi

setup_launchers
setup_jinja2
check_profile
beside kernels check_kernels
options+=(-Dtest.excludedGroups=clients -Dtest.soak.seconds=2)
if (($#)); then
  say "Building and testing with $forks test JVMs, log in target/test.log"
  run_maven verify "${options[@]}" "$@" || die "failed after $(elapsed)"
  joined kernels
  say "All checks passed in $(elapsed)"
  exit
fi

say "Compiling, log in target/test.log"
compile || die "failed after $(elapsed)"
version=$(sed -n 's|^  <version>\(.*\)</version>$|\1|p' "$root/pom.xml")
# Read here, because Maven writes it again at the end.
test_class_path=$(<"$root/ci/bench/target/test-class-path")
mkdir "$out/source"
tar -C "$root" --exclude=.git --exclude=target -c . | tar -C "$out/source" -x
beside installed check_built

say "Testing with $forks test JVMs, log in target/test.log"
# One invocation: in a second one, without `install`, a module would not find the others' jars. It also writes the bundle of a release.
# Without the incremental compilation, which compiles a module again because the jars it depends on are new.
rm -rf "$root/target/bundle"
run_maven -Prelease deploy "${options[@]}" -Dmaven.compiler.useIncrementalCompilation=false -Dspotless.check.skip=true ||
  die "failed after $(elapsed)"
joined kernels
"$root/ci/release.sh" --check
joined installed
compare_builds
say "All checks passed in $(elapsed)"
