#!/usr/bin/env bash
# Runs a sample; samples/run.sh --help lists them. Builds first if a source is newer than the last build. JVM options go
# into JDK_JAVA_OPTIONS; CLASSPATH names the programs to be launched.
set -euo pipefail

# shellcheck source=ci/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/../ci/setup.sh"
run_main samples org.djlx.samples.Main "$@"
