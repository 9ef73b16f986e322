# Finds, and where it is missing installs, what the build needs: a JDK and Maven; for tests also MPI and Slurm. To be sourced; defines functions only.
# shellcheck shell=bash

# The oldest Java that the project compiles and runs on; maven.compiler.release in pom.xml.
readonly MIN_JAVA=17

say() {
  printf '==> %s\n' "$*" >&2
}

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# bad_arguments MESSAGE: reports wrong arguments or a missing input file.
bad_arguments() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

# java_major HOME: prints the major version of the JDK there, 0 if there is none. Reads the file `release`, which every
# JDK has, because starting a JVM only to ask costs more than the rest of the script.
java_major() {
  local version=
  if [[ -x $1/bin/javac && -r $1/release ]]; then
    version=$(sed -n 's/^JAVA_VERSION="\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' "$1/release")
  fi
  printf '%s\n' "${version:-0}"
}

# java_homes: prints the folders in which a JDK may be, a line each: JAVA_HOME, that of the javac on PATH, and the system's.
java_homes() {
  local javac
  [[ -z ${JAVA_HOME:-} ]] || printf '%s\n' "$JAVA_HOME"
  if javac=$(command -v javac); then
    dirname "$(dirname "$(readlink -f "$javac")")"
  fi
  printf '%s\n' /usr/lib/jvm/* "$HOME"/.sdkman/candidates/java/current
}

# newest_java: prints the home of the newest JDK, nothing if there is none.
newest_java() {
  local home newest='' most=0 major
  while read -r home; do
    major=$(java_major "$home")
    if ((major > most)); then
      most=$major newest=$home
    fi
  done < <(java_homes)
  printf '%s' "$newest"
}

# use_java: exports the first JAVA_HOME of java_homes that is new enough, and puts it first on PATH; fails if there is none.
use_java() {
  local home
  while read -r home; do
    if (($(java_major "$home") >= MIN_JAVA)); then
      if [[ -n ${JAVA_HOME:-} && $home != "$JAVA_HOME" ]]; then
        say "JAVA_HOME=$JAVA_HOME is not a JDK of version $MIN_JAVA or newer; using $home"
      fi
      export JAVA_HOME=$home
      export PATH=$home/bin:$PATH
      return 0
    fi
  done < <(java_homes)
  return 1
}

# as_root COMMAND...: runs a command as root, through sudo where needed.
as_root() {
  if ((EUID == 0)); then
    "$@"
  else
    sudo "$@"
  fi
}

# apt COMMAND...: apt-get without questions; waits for a lock, which a machine that has just booted often holds.
apt() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@"
}

# jdk_package: prints the name of the oldest JDK package that apt offers and that is new enough.
jdk_package() {
  local package
  for package in openjdk-{17,21,25}-jdk-headless; do
    if apt-cache show "$package" >/dev/null 2>&1; then
      printf '%s\n' "$package"
      return 0
    fi
  done
  die "apt offers no JDK of version $MIN_JAVA or newer; install one and set JAVA_HOME"
}

# setup: makes sure of a JDK, Maven, g++, and npm or curl, which download the chat page's libraries. Changes nothing on a machine that has them.
setup() {
  local -a missing=() packages=()
  local jdk
  use_java || missing+=("a JDK $MIN_JAVA or newer")
  command -v mvn >/dev/null || missing+=(Maven)
  command -v g++ >/dev/null || missing+=(g++)
  command -v npm >/dev/null || command -v curl >/dev/null || missing+=(curl)
  if ((${#missing[@]} == 0)); then
    say "Java: $JAVA_HOME; Maven: $(command -v mvn)"
    return 0
  fi

  local what
  printf -v what '%s, ' "${missing[@]}"
  what=${what%, }
  command -v apt-get >/dev/null || die "$what missing and there is no apt-get to install with; install by hand and run this again"
  if ((EUID != 0)) && ! command -v sudo >/dev/null; then
    die "$what missing; run this as root or with sudo, or install by hand"
  fi
  say "Installing $what through apt"
  apt update
  if ! use_java; then
    jdk=$(jdk_package)
    packages+=("$jdk")
  fi
  command -v mvn >/dev/null || packages+=(maven)
  command -v g++ >/dev/null || packages+=(g++)
  command -v npm >/dev/null || command -v curl >/dev/null || packages+=(curl ca-certificates)
  # Slim images leave this directory out, and the JDK's package cannot be configured without it.
  as_root mkdir -p /usr/share/man/man1
  apt install -y --no-install-recommends "${packages[@]}"
  use_java || die "no JDK $MIN_JAVA or newer although ${packages[*]} was installed"
  say "Java: $JAVA_HOME; Maven: $(command -v mvn)"
}

# setup_launchers: as root on a machine with apt, installs Open MPI, MPICH and Slurm, with which the tests of backend mpi and of the
# variables of launchers run. Without them these tests are skipped, so that a failure here is none.
setup_launchers() {
  if command -v mpirun.openmpi >/dev/null && command -v mpiexec.hydra >/dev/null && command -v slurmctld >/dev/null; then
    return 0
  fi
  if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
    say "Launchers: tested with those that are installed; Debian's packages are openmpi-bin, mpich and slurm-wlm"
    return 0
  fi
  say "Installing openmpi-bin, mpich and slurm-wlm through apt"
  { apt update && apt install -y --no-install-recommends openmpi-bin mpich slurm-wlm; } >/dev/null 2>&1 ||
    say "openmpi-bin, mpich and slurm-wlm cannot be installed; their tests are skipped"
}

# setup_jinja2: as root on a machine with apt, installs Jinja2, beside which chat templates are tested. Without it these tests are skipped.
setup_jinja2() {
  if python3 -c 'import jinja2' 2>/dev/null; then
    return 0
  fi
  if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
    say "Jinja2 is not installed: chat templates are not compared with it; Debian's package is python3-jinja2"
    return 0
  fi
  say "Installing python3-jinja2 through apt"
  { apt update && apt install -y --no-install-recommends python3-jinja2; } >/dev/null 2>&1 ||
    say "python3-jinja2 cannot be installed; its tests are skipped"
}

# project_root: prints the project's root, whatever the directory.
project_root() {
  (cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
}

# maven ARG...: runs Maven in the project's root, without colours, progress bars and questions, and without the optimising compiler, with
# which javac takes 4 times the CPU time. If JAVA_HOME is older than Java 22, the newest JDK of this machine compiles
# native-ops/src/main/java22; without one the jar has no classes for Java 22.
maven() {
  local newest
  newest=$(newest_java)
  if (($(java_major "$JAVA_HOME") < 22 && $(java_major "$newest") >= 22)); then
    set -- -Pjava22 "-Djava22.home=$newest" "$@"
  fi
  # Without this property Maven's terminal library writes escape sequences even into a file.
  (cd "$(project_root)" && MAVEN_OPTS="-XX:TieredStopAtLevel=1 -Djansi.noreset=true ${MAVEN_OPTS:-}" mvn -B -Dstyle.color=never "$@")
}

# published_modules: prints the modules of a release that have a jar, as the root POM names them; djlx-bom has none.
published_modules() {
  sed -n '/djlx-bom/!s|^    <module>\(.*\)</module>$|\1|p' "$(project_root)/pom.xml"
}

# build ARG...: packages modules without their tests, and prints a line a module and one every 5 seconds. Maven's output goes to target/build.log.
build() {
  local log begin=$SECONDS
  log=$(project_root)/target/build.log
  mkdir -p "$(dirname "$log")"
  if ! maven -Dmaven.test.skip=true -Dpeer.skip=true -Dspotless.check.skip=true package "$@" 2>&1 | tee "$log" | build_progress >&2; then
    grep -aE '^\[ERROR\]' "$log" | awk '!seen[$0]++' | head -20 >&2 || true
    die "the build failed after $((SECONDS - begin)) s; the whole output is in $log"
  fi
  say "Built in $((SECONDS - begin)) s"
}

# build_progress: reads Maven's output and prints those lines.
build_progress() {
  local line status begin=$SECONDS module=Maven step=starting files=0 shown=$SECONDS
  while true; do
    status=0
    IFS= read -rt 1 line || status=$?
    if ((status == 0)); then
      case $line in
        '[INFO] Building DJL Collectives'*'['*']')
          module=$(sed -E 's/^.INFO. Building (DJL Collectives :: )?(.*) [^ ]+ +(\[.*\])$/\3 \2/' <<<"$line")
          say "$module"
          shown=$SECONDS
          ;;
        '[INFO] --- '*) step=$(sed -E 's/^.INFO. --- [^:]*:([^:]*:)?([^ :]+) .*/\2/' <<<"$line") ;;
        Downloading*) step="downloading ${line##*/}" ;;
        Downloaded*) files=$((files + 1)) ;;
      esac
    elif ((status <= 128)); then
      return 0 # End of input; read returns more than 128 on its timeout.
    fi
    if ((SECONDS - shown >= 5)); then
      say "$module: $step, $((SECONDS - begin)) s$( ((files == 0)) || printf ', files downloaded: %d' "$files")"
      shown=$SECONDS
    fi
  done
}

# use_installed_torch CLASS_PATH: if DJLX_PYTHON names a Python, such as python3, lets DJL run on its PyTorch.
use_installed_torch() {
  local exports
  [[ -n ${DJLX_PYTHON:-} ]] || return 0
  exports=$(java -cp "$1" org.djlx.nativeops.torch.InstalledTorch "$DJLX_PYTHON") || die "the PyTorch of DJLX_PYTHON=$DJLX_PYTHON cannot be used"
  eval "$exports"
}

# gpu_names: prints the name of each GPU, or of each of CUDA_VISIBLE_DEVICES; nothing without a GPU.
gpu_names() {
  local names
  # nvidia-smi prints errors like names.
  names=$(nvidia-smi ${CUDA_VISIBLE_DEVICES+"--id=$CUDA_VISIBLE_DEVICES"} --query-gpu=name --format=csv,noheader 2>/dev/null) || return 0
  [[ -z $names ]] || printf '%s\n' "$names"
}

# run_main MODULE CLASS ARG...: runs a main class, or a source file, with the class path of a module, and builds the module first
# if a source is newer than the last build. JVM options go into JDK_JAVA_OPTIONS, which java itself reads; CLASSPATH is appended,
# for the programs to be launched.
# DJLX_CLASS_PATH names the class path of a build made elsewhere, which the first java on PATH runs; Maven is then not needed.
# DJLX_PYTHON names a Python on whose PyTorch to run.
run_main() {
  local root module=$1 main=$2 class_path lock classes
  root=$(project_root)
  # Every build of the module writes there the class path of its dependencies.
  class_path=$root/$module/target/class-path
  shift 2
  if [[ -n ${DJLX_CLASS_PATH:-} ]]; then
    use_installed_torch "$DJLX_CLASS_PATH"
    exec java --enable-native-access=ALL-UNNAMED "-Ddjlx.home=$root" -cp "$DJLX_CLASS_PATH" "$main" "$@"
  fi
  use_java || die "no JDK $MIN_JAVA or newer found; ci/quickstart.sh installs one"
  if ! up_to_date "$root" "$class_path"; then
    # Of several ranks started at once, one builds and the others wait for it.
    exec {lock}<"$root/pom.xml"
    flock "$lock"
    if ! up_to_date "$root" "$class_path"; then
      command -v mvn >/dev/null || die "Maven not found; ci/quickstart.sh installs it"
      say "Building $module"
      build -pl "$module" -am
    fi
    exec {lock}<&-
  fi
  classes=$root/$module/target/classes:$(<"$class_path")${CLASSPATH:+:$CLASSPATH}
  # The JVM looks for META-INF/versions in jars only, not in folders.
  (($(java_major "$JAVA_HOME") < 22)) || classes=$root/native-ops/target/classes/META-INF/versions/22:$classes
  use_installed_torch "$classes"
  exec "$JAVA_HOME/bin/java" --enable-native-access=ALL-UNNAMED "-Ddjlx.home=$root" -cp "$classes" "$main" "$@"
}

# up_to_date ROOT CLASS_PATH: whether no source is newer than the file of the class path, and its entries are there: Maven's local repository
# may have been emptied, or the checkout moved, since the build.
up_to_date() {
  local entry newer
  local -a entries
  [[ -r $2 ]] || return 1
  IFS=: read -ra entries <"$2" || true
  for entry in "${entries[@]}"; do
    [[ -r $entry ]] || return 1
  done
  newer=$(find "$1"/pom.xml "$1"/{*,ci/bench}/pom.xml "$1"/{*,ci/bench}/src/main -newer "$2" -print -quit 2>/dev/null) || true
  [[ -z $newer ]]
}
