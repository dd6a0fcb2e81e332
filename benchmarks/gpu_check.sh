#!/usr/bin/env bash
# What the NVIDIA GPUs of a bare Debian or Ubuntu make of Lockstep, in five minutes with its installation.
#
#   benchmarks/gpu_check.sh [--cpu] [--seconds 300] [--results FOLDER]
#
# Needs NVIDIA's driver, x86_64, 16 GB of disk (TMPDIR, default /var/tmp), and network access or a mirror for pip and uv. Works in a folder
# that is removed at the end; what stays are the results (benchmarks/results/), and packages of the system that were missing (tmux).
# --cpu runs all of it on processors, on a machine without GPUs.
set -euo pipefail
started=$(date +%s)
cd "$(dirname "$0")/.."
root=$PWD cpu='' seconds=300 results=$PWD/benchmarks/results/gpu-check-$(date +%Y%m%d-%H%M%S)

refuse() { echo "gpu_check: $1" >&2; exit 2; }

while [ $# -gt 0 ]; do
  case $1 in
    --cpu) cpu=--cpu; shift ;;
    --seconds) [[ ${2-} =~ ^[0-9]+$ ]] || refuse "--seconds takes a whole number"; seconds=$2; shift 2 ;;
    --results) [ -n "${2-}" ] || refuse "--results takes a folder"; results=$(realpath -m "$2"); shift 2 ;;
    *) refuse "$1 is no option; see the beginning of $0" ;;
  esac
done

# Seconds that are left.
left() { echo $((started + seconds - $(date +%s))); }
step() {
  echo "gpu_check: $1, $(left) s left" >&2
  [ "$(left)" -gt 0 ] || refuse "no time left before: $1"
}

if [ -z "$cpu" ]; then
  command -v nvidia-smi >/dev/null || refuse "nvidia-smi is missing: install NVIDIA's driver (--cpu tests this script without GPUs)"
  listed=$(nvidia-smi -L 2>&1) || refuse "nvidia-smi fails: ${listed%%$'\n'*}"
  [ "$(uname -m)" = x86_64 ] || refuse "TensorFlow with CUDA is built for x86_64 only, and this is $(uname -m)"
fi

folder=$(mktemp -d "${TMPDIR:-/var/tmp}/lockstep-gpu-XXXXXX")
child=''
finish() {
  # It ends what it has started, and then itself.
  [ -z "$child" ] || { kill "$child" && wait "$child"; } 2>/dev/null || true
  rm -rf "$folder"
}
trap finish EXIT
trap 'exit 130' INT TERM
free=$(($(df --output=avail -m "$folder" | tail -n 1)))
need=$([ -n "$cpu" ] && echo 4000 || echo 16000)
[ "$free" -ge "$need" ] || refuse "$free MB are free in $folder, $need are needed: TMPDIR=FOLDER names another disk"

# Everything below works in the folder, uv's cache and Python included.
export UV_CACHE_DIR=$folder/uv UV_PYTHON_INSTALL_DIR=$folder/python UV_LINK_MODE=hardlink
unset PYTHONPATH VIRTUAL_ENV

# apt-get install, where this user may.
packages() {
  local as=()
  [ "$(id -u)" -eq 0 ] || { sudo -n true 2>/dev/null && as=(sudo -n); } || refuse "missing, and root is needed to install them: $*"
  step "install $*"
  { timeout "$(left)" "${as[@]}" apt-get update -q && timeout "$(left)" "${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qy "$@"; } \
    >"$folder/apt.log" 2>&1 || refuse "apt-get can't install $*: $(tail -n 1 "$folder/apt.log")"
}

fits() { "$1" -c 'import struct, sys; sys.exit(not ((3, 11) <= sys.version_info[:2] <= (3, 13) and struct.calcsize("P") == 8))' 2>/dev/null; }

find_python() {
  local name
  for name in python3 python3.13 python3.12 python3.11; do
    if command -v "$name" >/dev/null && fits "$name"; then python=$(command -v "$name"); return; fi
  done
  step "get a Python"
  uv=$(command -v uv || true)
  if [ -z "$uv" ]; then
    python3 -m venv "$folder/tool" >/dev/null 2>&1 || { packages python3-venv && python3 -m venv "$folder/tool"; } \
      || refuse "no Python from 3.11 to 3.13, and no uv to get one"
    timeout "$(left)" "$folder/tool/bin/pip" install --quiet uv || refuse "pip can't install uv"
    uv=$folder/tool/bin/uv
  fi
  timeout "$(left)" "$uv" python install --quiet 3.12 || refuse "uv can't get Python 3.12"
  python=$("$uv" python find --managed-python 3.12)
}

command -v tmux >/dev/null || packages tmux
find_python

step "set up"
mkdir "$folder/project"
tar -C "$root" --exclude='./.*' --exclude=./runs --exclude=./datasets --exclude=./benchmarks/results -cf - . | tar -C "$folder/project" -xf -
cd "$folder/project"
timeout "$(left)" "$python" requirements/install.py control >"$folder/install.log" 2>&1 || refuse "set-up failed: $(tail -n 1 "$folder/install.log")"
workers=$PWD/.venv/bin/python
if [ -z "$cpu" ]; then
  step "install TensorFlow with CUDA"
  workers=$folder/gpu/bin/python
  # The uv that set up the project, or the system's.
  uv=$PWD/.venv/bin/uv
  [ -x "$uv" ] || uv=$(command -v uv) || refuse "uv is missing: it could not be installed (pip takes longer than this check)"
  "$uv" venv --quiet --python "$python" "$folder/gpu"
  timeout "$(left)" "$uv" pip install --quiet --python "$workers" --require-hashes -r requirements/node-gpu.txt 2>"$folder/install.log" \
    || refuse "TensorFlow with CUDA could not be installed in time: $(tail -n 1 "$folder/install.log")"
fi

step "check"
# Caches that programs make in a user's home are removed, too.
mkdir "$folder/home" "$folder/tmp"
HOME=$folder/home TMPDIR=$folder/tmp PYTHONPATH=$PWD .venv/bin/python benchmarks/scripts/gpu_check.py $cpu --python "$workers" --seconds "$(left)" --results "$results" &
child=$!
code=0
wait "$child" || code=$?
child=''
exit "$code"
