#!/usr/bin/env bash
# From a fresh clone to the first job: installs what is missing, builds, and runs the main job, a tensor-parallel MLP.
#   ci/quickstart.sh [arguments of `samples/run.sh mlp`]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=ci/setup.sh
source "$root/ci/setup.sh"

setup
exec "$root/samples/run.sh" mlp "$@"
