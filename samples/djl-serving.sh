#!/usr/bin/env bash
# Prepares a DJL Serving for Llamas on several ranks: copies the jars of this project and of CLASSPATH to deps/ and, if
# MODEL_DIRECTORY is given, the model to models/, and prints an example request. A model without a serving.properties will not
# start, so it must have one. If CLASSPATH has the CUDA presets, ranks are GPUs. See docs/serving.md.
#   samples/djl-serving.sh MODEL_SERVER_HOME [MODEL_DIRECTORY]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=ci/setup.sh
source "$root/ci/setup.sh"

if [[ ${1:-} == --help || ${1:-} == -h ]]; then
  sed -n '2,/^set /{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  exit
fi
(($# == 1 || $# == 2)) || bad_arguments "usage: samples/djl-serving.sh MODEL_SERVER_HOME [MODEL_DIRECTORY]"
[[ -d $1 ]] || bad_arguments "$1 is not a directory"
home=$(cd "$1" && pwd -P)
model=${2:-}
if [[ -n $model ]]; then
  [[ -f $model/config.json ]] || bad_arguments "$model is not a model directory: it has no config.json"
  # DJL Serving would take it for a model of its Python engine, and not start.
  [[ -f $model/serving.properties ]] ||
    bad_arguments "$model has no serving.properties, without which DJL Serving will not start it: write one with the line engine=PyTorch-P2P; docs/serving.md has an example"
  # Without GPUs DJL Serving itself would refuse the model, for a lack of memory.
  ! grep -Eqi '^\s*option\.enable_lora\s*[=:]\s*true' "$model/serving.properties" ||
    bad_arguments "option.enable_lora=true in $model/serving.properties is not supported: remove it"
  model=$(cd "$model" && pwd) # with a name, also if it is .
fi

"$root/samples/run.sh" help >/dev/null # builds, if a source has changed

mkdir -p "$home/deps" "$home/models"
version=$(sed -n 's|^  <version>\(.*\)</version>$|\1|p' "$root/pom.xml")
for module in native-ops djl-collectives fused-ops text-generation; do
  rm -f "$home/deps/$module"-[0-9]*.jar # of another version
  cp "$root/$module/target/$module-$version.jar" "$home/deps/"
done
# As java does, an element that ends in /* names the jars of a folder.
IFS=: read -ra elements <<<"${CLASSPATH:-}" || true
for element in ${elements[@]+"${elements[@]}"}; do
  [[ -n $element ]] || continue
  jars=("$element")
  [[ $element != */\* ]] || jars=("${element%\*}"*.jar)
  for jar in "${jars[@]}"; do
    if [[ ! -e $jar ]]; then
      die "CLASSPATH names $jar, which does not exist"
    elif [[ $jar != *.jar || ! -f $jar ]]; then
      say "not copied, because it is not a jar: $jar"
    elif [[ ! $jar -ef $home/deps/${jar##*/} ]]; then
      cp -- "$jar" "$home/deps/"
    fi
  done
done
# libtorch for the CPU, unless there are CUDA presets: without it, DJL Serving fetches the one for the host's CUDA.
presets=("$home"/deps/cuda-[0-9]*.jar)
rm -f "$home"/deps/pytorch-native-cpu-*.jar
IFS=: read -ra jars <"$root/samples/target/class-path" || true
for jar in "${jars[@]}"; do
  case ${jar##*/} in
    pytorch-native-cpu-*.jar) [[ -f ${presets[0]} ]] || cp "$jar" "$home/deps/" ;;
    pytorch-jni-*.jar) cp "$jar" "$home/deps/" ;;
  esac
done
if [[ -n $model ]]; then
  cp -rL "$model" "$home/models/"
fi
say "$home is ready: start DJL Serving with"
echo "NO_OMP_NUM_THREADS=1 MODEL_SERVER_HOME=$home djl-serving -s $home/models"
if [[ -n $model ]]; then
  say "then ask it:"
  cat <<EOF
curl http://127.0.0.1:8080/predictions/${model##*/} -H 'Content-Type: application/json' \\
  -d '{"inputs": "DJL", "parameters": {"max_new_tokens": 16}}'
EOF
fi
