#!/usr/bin/env bash
# Runs a benchmark; ci/bench/run.sh --help lists them, and ci/bench.sh runs those whose figures are in ci/results. Builds first
# if a source is newer than the last build. JVM options go into JDK_JAVA_OPTIONS.
set -euo pipefail

# shellcheck source=ci/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
# NVSwitch's multicast can take a host out of service.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1
run_main ci/bench org.djlx.bench.Main "$@"
