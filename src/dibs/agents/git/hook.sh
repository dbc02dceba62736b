#!/bin/sh
# Made by dibs. @WHAT@; `dibs hook uninstall` takes this away.
# A hook that was here before is beside this one, with @BEFORE@ at the end of its name, and runs first.
name="${0%/*}/@HOOK@"
before="$name@BEFORE@"
@SHELL@
@PROGRAM@
run_before() {
    [ -x "$before" ] && [ -z "$PRE_COMMIT_RUNNING_LEGACY" ] || return 0
    if [ -n "$before_shell" ]; then
        dibs_before="$before" $before_shell -c '. "$dibs_before"' "$name" "$@"
    else
        "$before" "$@"
    fi
}
@FIRST@
for program in "$dibs_program" dibs; do
    command -v "${program%% *}" >/dev/null 2>&1 || continue
    @GIVEN@$program hook run @HOOK@ "$@" && exit
    code=$?
    $program --version >/dev/null 2>&1 && exit "$code"
done
echo "dibs: the program does not run here, so that the claims were not looked at. Install it, or remove $0." >&2
[ "$(git config --get dibs.unreachable)" != block ]
