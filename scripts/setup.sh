# shellcheck shell=bash
# Sourced by scripts/run and scripts/test: keeps .venv in line with pyproject.toml and
# constraints.txt. All messages go to standard error; standard output belongs to the program.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
log=$venv/setup.log
unfinished=$venv/.specx-unfinished
started=$SECONDS
ticker=

say() { printf '%s\n' "specx: $*" >&2; }

die() {
    say "$*"
    exit 2
}

# set_up NAME [EXTRAS]: installs specx[EXTRAS] unless that was done for these very files.
set_up() {
    local stamp=$venv/.specx-$1 extras=${2:+[$2]} state
    state=$(state_now)
    if [[ -x $venv/bin/python && -r $stamp && $(<"$stamp") == "$state" && ! -e $unfinished ]] &&
        ! new_cmake_args; then
        return
    fi
    trap interrupted INT
    make_venv
    : >"$log"
    get_llama_cpp
    pip_install "installing specx$extras into .venv" -e "$root$extras" ||
        pip_failed "pip could not install specx"
    # Last, so that an interrupted set-up is repeated. Any complete set-up is enough for run.
    printf '%s\n' "$state" | tee "$stamp" >"$venv/.specx-run"
    trap - INT
}

interrupted() {
    [[ -z $ticker ]] || kill "$ticker" 2>/dev/null || true
    end_line
    say "set-up interrupted; the next call starts it again"
    exit 130
}

# The state that an installation depends on, including the folder: a .venv cannot be moved.
state_now() {
    printf '%s\n' "$root"
    (cd "$root" && cksum pyproject.toml constraints.txt scripts/setup.sh scripts/llama_cpp.cmake)
}

# pip_install WHAT ARGUMENTS: pip's own words go to the log, one line to the terminal.
pip_install() {
    local what=$1 status=0
    shift
    say "$what"
    show_progress &
    ticker=$!
    : >"$unfinished"
    # In the foreground, so that Ctrl-C reaches pip and the compilers too.
    "$venv/bin/python" -m pip --disable-pip-version-check install -v --progress-bar off \
        -c "$root/constraints.txt" "$@" >>"$log" 2>&1 || status=$?
    ((status > 128)) || rm "$unfinished" # a pip that fails cleans up, one that is killed does not
    kill "$ticker" 2>/dev/null || true
    wait "$ticker" 2>/dev/null || true
    ticker=
    end_line
    return "$status"
}

# The seconds and the step: once a second in one line of a terminal, elsewhere twice a minute.
show_progress() {
    local line second=0
    while sleep 1 && kill -0 $$ 2>/dev/null; do
        line="specx: $((SECONDS - started)) s  $(last_step)"
        if [[ -t 2 ]]; then
            printf '\r%-79.79s' "$line" >&2
        elif ((++second % 30 == 0)); then
            printf '%s\n' "$line" >&2
        fi
    done
}

end_line() { [[ ! -t 2 ]] || printf '\r%79s\r' '' >&2; }

# The latest step of pip or the build: "Collecting numpy", or "[43/82]" of llama.cpp's files.
last_step() {
    grep -oE '^ *(\[[0-9]+/[0-9]+\]|(Collecting|Downloading|Installing|Building) [^;(<>=]*)' "$log" |
        tail -n 1 | sed -E 's/^ *//' || true # nothing yet
}

pip_failed() {
    tail -n 15 "$log" | cut -c 1-200 >&2
    die "$*; the whole log is $log"
}

# A killed pip may leave a package half unpacked, which the next run would take for complete.
# Earlier downloads and builds are in pip's cache.
make_venv() {
    if [[ -e $unfinished ]]; then
        say "the last set-up was interrupted: making .venv anew"
    elif "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        return
    fi
    local python
    python=$(find_python)
    say "making .venv with $("$python" --version)"
    if ! "$python" -m venv --clear --without-pip "$venv" >&2 || ! : >"$unfinished" ||
        ! "$venv/bin/python" -m ensurepip --upgrade --default-pip >"$log" 2>&1; then
        die "'$python -m venv' failed; on Debian or Ubuntu: apt-get install python3-venv"
    fi
    rm "$unfinished"
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

get_llama_cpp() {
    if [[ -n ${SPECX_PREBUILT:-} ]]; then
        install_prebuilt
    elif [[ ! -e $venv/.specx-prebuilt ]] || new_cmake_args; then
        build_llama_cpp
    fi
}

# SPECX_PREBUILT=1 looks for a wheel in pip's own indexes, SPECX_PREBUILT=URL also in that index.
# The wheel is used as it is, with or without RPC.
install_prebuilt() {
    [[ -z ${CMAKE_ARGS:-} ]] ||
        die "SPECX_PREBUILT uses a wheel that was built elsewhere: unset it or CMAKE_ARGS"
    local index=()
    [[ $SPECX_PREBUILT == 1 ]] || index=(--extra-index-url "$SPECX_PREBUILT")
    # ${...+}: bash before 4.4 calls an empty array unset.
    pip_install "fetching a built llama-cpp-python" --only-binary llama-cpp-python \
        ${index[@]+"${index[@]}"} llama-cpp-python ||
        die "no wheel of llama-cpp-python for this machine was found (SPECX_PREBUILT=$SPECX_PREBUILT;" \
            "see $log): give the index that its documentation names for your platform," \
            "SPECX_PREBUILT=URL, or leave SPECX_PREBUILT out and it is built"
    : >"$venv/.specx-prebuilt"
}

# llama-cpp-python comes as source. pip caches its build by version alone, regardless of
# CMAKE_ARGS; so the result is checked, and the cached build is dropped for new CMAKE_ARGS.
# A build with more in it than ours is fine too.
build_llama_cpp() {
    rm -f "$venv/.specx-prebuilt"
    ! new_cmake_args || forget_build
    has_rpc || need_compiler
    install_build
    if ! has_rpc; then
        say "pip's cache held a build without RPC"
        forget_build
        install_build
    fi
    [[ -z ${CMAKE_ARGS:-} ]] || printf '%s\n' "$CMAKE_ARGS" >"$venv/.specx-cmake-args"
}

# Only llama and the libraries it links, including RPC; other CMake arguments are up to the user.
install_build() {
    local include
    include=$(printf %q "$root/scripts/llama_cpp.cmake")
    CMAKE_ARGS="${CMAKE_ARGS:+$CMAKE_ARGS }-DGGML_RPC=ON -DLLAVA_BUILD=OFF\
 -DCMAKE_PROJECT_llama.cpp_INCLUDE=$include" SKBUILD_BUILD_TARGETS=llama \
        pip_install "installing llama.cpp, built from source: 2 to 5 minutes, once per machine" \
        llama-cpp-python || pip_failed "llama.cpp could not be built"
}

# Succeeds if CMAKE_ARGS are set and differ from those of the last build.
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
