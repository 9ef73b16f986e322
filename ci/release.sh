#!/usr/bin/env bash
# Builds the bundle that Maven Central asks for, checks it, and writes target/bundle.zip to upload at central.sonatype.com. Uploads nothing.
#   ci/release.sh [--key KEY] [arguments of mvn]
#   ci/release.sh --check
#     --key    signs with this key of gpg, as Maven Central asks; without, the bundle is checked but cannot be uploaded
#     --check  builds nothing: checks the target/bundle that ci/test.sh has written
#
# Runs no tests: ci/test.sh does.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=ci/setup.sh
source "$root/ci/setup.sh"

key='' build=1
if [[ ${1:-} == --check ]]; then
  build=''
elif [[ ${1:-} == --key ]]; then
  (($# > 1)) || die "--key needs a value"
  key=$2
  shift 2
fi

bundle=$root/target/bundle
errors=0

# wrong MESSAGE: counts an error of the bundle.
wrong() {
  printf 'error: %s\n' "$1" >&2
  errors=$((errors + 1))
}

# check_file FILE: is there, not empty, with right checksums and, if there is a key, a valid signature.
check_file() {
  local file=$1 sum
  [[ -s $file ]] || { wrong "$file is missing or empty"; return 0; }
  for sum in md5 sha1; do
    if [[ ! -s $file.$sum ]]; then
      wrong "$file.$sum is missing"
    elif [[ $(<"$file.$sum") != "$("${sum}sum" <"$file" | cut -d' ' -f1)" ]]; then
      wrong "$file.$sum is not the checksum of the file"
    fi
  done
  [[ -z $key ]] || gpg --quiet --verify "$file.asc" "$file" 2>/dev/null || wrong "$file.asc is not a signature of the file"
}

# check_pom FILE: has what Maven Central asks of a POM, inherited or its own.
check_pom() {
  local element
  for element in name description; do
    grep -q "^  <$element>..*</$element>$" "$1" || wrong "$1 has no <$element>"
  done
  for element in url licenses developers scm; do
    grep -q "^  <$element>" "$1" "$parent_pom" || wrong "$1 has no <$element>, and neither has its parent"
  done
  ! grep -q SNAPSHOT "$1" || wrong "$1 names a snapshot"
}

# check_jar FILE PATTERN: holds a file whose name matches. No grep -q after a pipe: it ends early, and then the pipe fails.
check_jar() {
  jar tf "$1" | grep "$2" >/dev/null || wrong "$1 has no $2"
}

# check_bill FILE: is a bill of materials in CycloneDX's format, with the versions of components.
check_bill() {
  check_file "$1"
  grep -q '"bomFormat" : "CycloneDX"' "$1" || wrong "$1 is not in CycloneDX's format"
  grep -q '"purl" : "pkg:maven/org.slf4j/slf4j-api@[0-9.]*?type=jar"' "$1" || wrong "$1 does not name the version of slf4j-api"
}

setup
version=$(sed -n 's|^  <version>\(.*\)</version>$|\1|p' "$root/pom.xml")
[[ $version != *-SNAPSHOT ]] || die "version $version is a snapshot: set a release version in the POMs"
grep -q "^## $version" "$root/CHANGELOG.md" || die "CHANGELOG.md has no section: ## $version"

if [[ -n $build ]]; then
  ! grep -q "^## $version, not released" "$root/CHANGELOG.md" || die "CHANGELOG.md says that $version is not released: remove that from its heading"
  say "Building the bundle of version $version in target/bundle"
  rm -rf "$bundle" "$bundle.zip"
  maven -q -Prelease ${key:+"-Dgpg.keyname=$key"} -DskipTests -pl ".,djlx-bom,$(published_modules | paste -sd,)" "$@" deploy >&2
fi
# What only our own build reads, and what a repository writes by itself.
find "$bundle" \( -name '*-tests.jar*' -o -name 'maven-metadata.xml*' \) -delete

say "Checking it"
parent_pom=$bundle/org/djlx/djl-collectives-parent/$version/djl-collectives-parent-$version.pom
check_file "$parent_pom"
for module in $(published_modules); do
  base=$bundle/org/djlx/$module/$version/$module-$version
  for file in "$base".pom "$base".jar "$base"-sources.jar "$base"-javadoc.jar; do
    check_file "$file"
  done
  check_bill "$base-bom.cdx.json"
  check_pom "$base.pom"
  check_jar "$base.jar" '\.class$'
  check_jar "$base.jar" '^META-INF/LICENSE$'
  check_jar "$base.jar" '^META-INF/NOTICE$'
  check_jar "$base-sources.jar" '\.java$'
  check_jar "$base-javadoc.jar" '^index.html$'
done
# They need a JDK of version 22 or newer beside the one of the build.
check_jar "$bundle/org/djlx/native-ops/$version/native-ops-$version.jar" '^META-INF/versions/22/.*\.class$'
check_jar "$bundle/org/djlx/native-ops/$version/native-ops-$version.jar" '^linux-x86-64/libdjlx_cpu.so$'
unzip -p "$bundle/org/djlx/native-ops/$version/native-ops-$version.jar" linux-x86-64/libdjlx_cpu.so | grep djlx_cpu_product >/dev/null ||
  wrong "the jar of native-ops lacks the decode kernels for CPUs, which need g++ 12 or newer"
check_pom "$parent_pom"
bom=$bundle/org/djlx/djlx-bom/$version/djlx-bom-$version.pom
check_file "$bom"
check_pom "$bom"
for module in $(published_modules); do
  grep -q "<artifactId>$module</artifactId>" "$bom" || wrong "$bom does not name $module"
done
extra=$(cd "$bundle/org/djlx" && printf '%s\n' * | grep -vxF -e djl-collectives-parent -e djlx-bom -e "$(published_modules)" || true)
[[ -z $extra ]] || wrong "the bundle holds more than is published: $extra"
((errors == 0)) || die "$errors errors in the bundle"

(cd "$bundle" && jar cMf "$bundle.zip" org)
say "target/bundle.zip is complete: $(find "$bundle" -type f | wc -l) files, $(du -h "$bundle.zip" | cut -f1)"
[[ -n $key ]] || say "It is not signed: --key KEY signs it, as Maven Central asks"
