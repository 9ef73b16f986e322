#!/usr/bin/env bash
# fetch.sh CACHE CLASSES: puts the JavaScript libraries that libraries.txt names into CLASSES, as CLASSES/PACKAGE/FILE. Downloads their
# tarballs into CACHE, unless they are there, with npm, or with curl where there is no npm. Accepts only the tarballs of libraries.txt.
set -euo pipefail

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# integrity FILE: prints what npm's registry calls the integrity of a tarball.
integrity() {
  printf 'sha512-'
  # shellcheck disable=SC2059 # The format is the bytes.
  printf "$(sha512sum <"$1" | cut -d' ' -f1 | sed 's/../\\x&/g')" | base64 -w0
}

# download PACKAGE VERSION FILE: writes the tarball into FILE.
download() {
  local directory
  directory=$(mktemp -d "$cache/download.XXXXXX")
  if command -v npm >/dev/null; then
    npm pack --silent --prefer-offline --pack-destination "$directory" "$1@$2" >/dev/null || die "npm cannot download $1@$2; \`npm ping\` says why"
  elif command -v curl >/dev/null; then
    curl -fsS --retry 3 -o "$directory/$1-$2.tgz" "${NPM_REGISTRY:-https://registry.npmjs.org}/$1/-/$1-$2.tgz" ||
      die "curl cannot download $1@$2; set NPM_REGISTRY to a mirror of npm's registry, or put $1-$2.tgz into $cache"
  else
    die "neither npm nor curl found to download $1@$2; install one, or put $1-$2.tgz into $cache"
  fi
  mv "$directory/$1-$2.tgz" "$3"
  rmdir "$directory"
}

(($# == 2)) || die "fetch.sh needs two arguments, CACHE and CLASSES, but has $#"
mkdir -p "$1" "$2"
cache=$(cd "$1" && pwd)
while read -r package version file expected; do
  [[ -n $package && $package != '#'* ]] || continue
  tarball=$cache/$package-$version.tgz
  [[ -e $tarball ]] || download "$package" "$version" "$tarball"
  found=$(integrity "$tarball")
  [[ $found == "$expected" ]] || die "$tarball has integrity $found, but libraries.txt says $expected; delete the file and build again"
  if [[ ! $2/$package/$file -nt $tarball ]]; then
    mkdir -p "$(dirname "$2/$package/$file")"
    tar -xzOf "$tarball" "package/$file" >"$2/$package/$file.$$"
    mv "$2/$package/$file.$$" "$2/$package/$file" # At once, whatever ends or runs beside this.
  fi
done <"$(dirname "${BASH_SOURCE[0]}")/libraries.txt"
