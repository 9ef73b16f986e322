#!/usr/bin/env bash
# build.sh FILE: compiles tensors.cpp and the CPU's kernels into a shared library that needs only libc, and djl_adapter.c into
# libdjl_torch_adapter.so beside it, unless FILE is newer than they are.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
[[ -z $(find . -newer "$1" 2>&1) ]] && exit
version=$(g++ -dumpversion 2>/dev/null || echo 0)
if [[ $(uname -sm) != "Linux x86_64" ]] || ((${version%%.*} == 0)); then
  echo "error: the native part needs g++ on Linux x86-64; install g++ 12 or newer" >&2
  exit 1
fi
sources=(tensors.cpp cpu_kernels.cpp)
if ((${version%%.*} < 12)); then
  echo "the CPU's kernels are not compiled: they need g++ 12 or newer" >&2
  sources=(tensors.cpp)
fi
mkdir -p "$(dirname "$1")"
folder=$(dirname "$1")
javac=$(readlink -f "${JAVA_HOME:+$JAVA_HOME/bin/javac}" || command -v javac)
include=$(dirname "$(dirname "$(readlink -f "$javac")")")/include
if [[ ! -r $include/jni.h ]]; then
  echo "error: $include/jni.h not found; set JAVA_HOME to a JDK" >&2
  exit 1
fi
# The adapter needs a library of this name, which is put beside it: DJL's native code.
gcc -shared -Wl,-soname,libdjl_torch_2.7.1.so -x c /dev/null -o "$folder/stub.$$.so"
gcc -std=c11 -O2 -fPIC -shared -fvisibility=hidden -Wall -Wextra ${DJLX_WERROR:+-Werror} -I"$include" -I"$include/linux" djl_adapter.c \
  -Wl,--no-as-needed "$folder/stub.$$.so" -Wl,-rpath,'$ORIGIN' -o "$folder/adapter.$$"
rm "$folder/stub.$$.so"
mv "$folder/adapter.$$" "$folder/libdjl_torch_adapter.so"
# GCC reports the headers of its own intrinsics as uninitialised (PR 105593).
g++ -std=c++17 -O3 -fPIC -shared -fvisibility=hidden -fno-exceptions -fno-rtti -fno-math-errno -Wall -Wextra ${DJLX_WERROR:+-Werror} \
  -Wno-maybe-uninitialized -Wno-uninitialized -Wl,-z,now -nodefaultlibs "${sources[@]}" -lc -lgcc -o "$1.$$"
mv "$1.$$" "$1" # At once, whatever ends or runs beside this.
