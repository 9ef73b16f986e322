#!/usr/bin/env bash
# All checks: the maps of packages are whole, kernels and the trace of GPUs compile, the build has no warning, tests pass, javadoc is
# complete. Of the attacks (mvn -Psoak test) each runs for a few seconds, and at least one round of it. Without arguments,
# samples/quickstart-project is built too.
#   ci/test.sh [arguments of mvn, for example -pl samples -am]
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
    say "nvcc ci/profile/trace.cpp"
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
  say "Building samples/quickstart-project with $version of the artefacts"
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
    com.example.Quickstart
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

setup
out=$(mktemp -d)
trap 'jobs -p | xargs -r kill 2>/dev/null; rm -rf "$out"' EXIT
check_maps
check_profile
# Beside the tests, which wait for other processes for much of their time.
check_kernels >"$out/kernels.log" 2>&1 &
kernels=$!
# One invocation: in a second one, without `install`, a module would not find the others' jars. Javadoc is part of it.
maven verify -Dtest.excludedGroups= -Dtest.soak.seconds=2 "$@"
wait "$kernels" || die "kernels: $(<"$out/kernels.log")"
tail -1 "$out/kernels.log"
(($#)) || check_quickstart_project
say "All checks passed"
