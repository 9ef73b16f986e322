#!/usr/bin/env bash
# Writes one javadoc site of the published modules into target/javadoc, with links to DJL and the JDK. Needs no network.
#   ci/javadoc.sh
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=ci/setup.sh
source "$root/ci/setup.sh"

setup
"$root/samples/run.sh" help >/dev/null # builds, if a source has changed
# The CUDA presets and LangChain4j are brought by users, so they are on the class paths of these modules alone.
class_path=$(<"$root/samples/target/class-path"):$(<"$root/native-ops/target/class-path"):$(<"$root/text-generation/target/class-path")
out=$root/target/javadoc
links=$root/target/javadoc-links
rm -rf "$out" "$links"
mkdir -p "$links/djl" "$links/jdk"

# The element lists of what is linked, from DJL's jars and from this JDK.
[[ $class_path =~ [^:]*/ai/djl/api/([^/]+)/api-[^:]*\.jar ]] || die "DJL's api is not on the class path of samples"
api_jar=${BASH_REMATCH[0]} djl_version=${BASH_REMATCH[1]}
jar tf "$api_jar" | sed -n 's|/[^/]*\.class$||p' | tr / . | sort -u >"$links/djl/element-list"
for module in java.base java.desktop java.logging java.management java.net.http jdk.jfr; do
  printf 'module:%s\n' "$module"
  java --describe-module "$module" | sed -n 's/^exports \([^ ]*\)$/\1/p'
done >"$links/jdk/element-list"

sources=$(published_modules | sed "s|.*|$root/&/src/main/java|" | paste -sd:)
IFS=: read -ra folders <<<"$sources"
internal=$(find "${folders[@]}" -type d -path '*/internal*' -printf '%P\n' | tr / . | paste -sd:)
javadoc -quiet -d "$out" -sourcepath "$sources" -classpath "$class_path" -encoding UTF-8 \
  -subpackages org.djlx -exclude "$internal" \
  -overview "$root/docs/overview.html" -windowtitle 'DJL Collectives' -notimestamp \
  -group 'Process groups' 'org.djlx.collectives*:org.djlx.mpi' \
  -group 'Fused operators' 'org.djlx.fusedops*' \
  -group 'Training' 'org.djlx.training*' \
  -group 'Text generation' 'org.djlx.llm*' \
  -group 'Native libraries' 'org.djlx.nativeops*' \
  -Xdoclint:all,-missing -Werror \
  -linkoffline "https://javadoc.io/doc/ai.djl/api/$djl_version" "$links/djl" \
  -linkoffline "https://docs.oracle.com/en/java/javase/$MIN_JAVA/docs/api" "$links/jdk"
say "The site is $out/index.html"
