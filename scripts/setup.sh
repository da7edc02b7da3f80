# shellcheck shell=bash
# Sourced by scripts/run and scripts/test: keeps .venv as pyproject.toml and constraints.txt say.
# Everything it says goes to standard error; standard output belongs to the program.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv

say() { printf '%s\n' "specx: $*" >&2; }

die() {
    say "$*"
    exit 2
}

# set_up NAME [EXTRAS]: installs specx[EXTRAS] unless that was done for these very files.
set_up() {
    local stamp=$venv/.specx-$1 extras=${2:+[$2]} state
    state=$(state_now)
    if [[ -x $venv/bin/python && -r $stamp && $(<"$stamp") == "$state" ]] && ! new_cmake_args; then
        return
    fi
    make_venv
    build_llama_cpp
    say "installing specx$extras into .venv"
    pip_install -e "$root$extras"
    # Last, so that an interrupted set-up is done again. Whatever was installed, run can run.
    printf '%s\n' "$state" | tee "$stamp" >"$venv/.specx-run"
}

# What an installation depends on: the folder too, because a virtual environment cannot be moved.
state_now() {
    printf '%s\n' "$root"
    (cd "$root" && cksum pyproject.toml constraints.txt scripts/setup.sh)
}

# RPC is added wherever pip may come to build llama.cpp.
pip_install() {
    CMAKE_ARGS="${CMAKE_ARGS:+$CMAKE_ARGS }-DGGML_RPC=ON" \
        "$venv/bin/python" -m pip --disable-pip-version-check install \
        -c "$root/constraints.txt" "$@" >&2
}

make_venv() {
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 && return
    local python
    python=$(find_python)
    say "making .venv with $("$python" --version)"
    "$python" -m venv --clear "$venv" >&2 ||
        die "'$python -m venv' failed; on Debian or Ubuntu: apt-get install python3-venv"
}

find_python() {
    local python
    for python in ${PYTHON:+"$PYTHON"} python3 python3.{14,13,12,11,10} python; do
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            printf '%s\n' "$python"
            return
        fi
        [[ -z ${PYTHON:-} ]] || die "PYTHON=$PYTHON is not a Python 3.10 or newer"
    done
    die "no Python 3.10 or newer found; install one, or name it: PYTHON=/path/to/python3 $0"
}

# llama-cpp-python comes as source. pip caches what it built under the version alone, whatever
# CMAKE_ARGS said; so what it gives is checked, and what it has is forgotten for new CMAKE_ARGS.
build_llama_cpp() {
    ! new_cmake_args || forget_build
    if ! has_rpc; then
        need_compiler
        say "building llama.cpp from source: 5 to 15 minutes; pip keeps the result for the next time"
    fi
    pip_install llama-cpp-python
    if ! has_rpc; then
        say "pip's cache held a build without RPC; building again"
        forget_build
        pip_install llama-cpp-python
    fi
    [[ -z ${CMAKE_ARGS:-} ]] || printf '%s\n' "$CMAKE_ARGS" >"$venv/.specx-cmake-args"
}

# Whether CMAKE_ARGS are set, and not those of the last build.
new_cmake_args() {
    [[ -n ${CMAKE_ARGS:-} && $CMAKE_ARGS != "$(cat "$venv/.specx-cmake-args" 2>/dev/null)" ]]
}

has_rpc() {
    compgen -G "$venv/lib/python*/site-packages/llama_cpp/lib/libggml-rpc.*" >/dev/null
}

forget_build() {
    local pip=("$venv/bin/python" -m pip --disable-pip-version-check)
    "${pip[@]}" cache remove llama_cpp_python >/dev/null 2>&1 || true
    "${pip[@]}" uninstall --yes llama-cpp-python >/dev/null 2>&1 || true
}

need_compiler() {
    local compiler
    for compiler in ${CXX:+"$CXX"} c++ g++ clang++; do
        command -v "$compiler" >/dev/null && return
    done
    die "no C++ compiler found (llama.cpp is built from source); install g++, or Xcode's tools on macOS"
}
