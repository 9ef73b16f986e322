#!/usr/bin/env bash
# Runs a sample; samples/run.sh --help lists them. Builds first if a source is newer than the last build. JVM options go
# into JDK_JAVA_OPTIONS, which java itself reads; what CLASSPATH names is there for programs to be launched.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=ci/setup.sh
source "$root/ci/setup.sh"

# Written by every build of the module samples: the class path of what it depends on.
class_path=$root/samples/target/class-path

up_to_date() {
  local entry newer
  local -a entries
  [[ -r $class_path ]] || return 1
  # Maven's local repository may have been emptied, or the checkout moved, since the build.
  IFS=: read -ra entries <"$class_path" || true
  for entry in "${entries[@]}"; do
    [[ -r $entry ]] || return 1
  done
  newer=$(find "$root"/pom.xml "$root"/*/pom.xml "$root"/*/src/main -newer "$class_path" -print -quit 2>/dev/null) || true
  [[ -z $newer ]]
}

use_java || die "no JDK $MIN_JAVA or newer found; ci/quickstart.sh installs one"
if ! up_to_date; then
  # Of several ranks started at once, one builds and the others wait for it.
  exec {lock}<"$root/pom.xml"
  flock "$lock"
  if ! up_to_date; then
    command -v mvn >/dev/null || die "Maven not found; ci/quickstart.sh installs it"
    say "Building"
    maven -q -DskipTests -Dspotless.check.skip=true package >&2
  fi
  exec {lock}<&-
fi
classes=$root/samples/target/classes:$(<"$class_path")${CLASSPATH:+:$CLASSPATH}
exec "$JAVA_HOME/bin/java" "-Ddjlx.home=$root" -cp "$classes" org.djlx.samples.Main "$@"
