#!/usr/bin/env bash
# From a fresh clone to the first job: installs what is missing, builds, and runs the tensor-parallel MLP of samples/Mlp.java.
#   ci/quickstart.sh
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=ci/setup.sh
source "$root/ci/setup.sh"

setup
(run_main samples "$root/samples/Mlp.java")
cat <<'EOF'

next:
  samples/run.sh train --data-parallel 2                     # trains a language model on two ranks
  samples/run.sh serve-model target/tiny && samples/run.sh generate target/tiny --ranks 2 --prompt DJL    # text from a tiny random Llama
  samples/run.sh --help                                      # all samples
EOF
