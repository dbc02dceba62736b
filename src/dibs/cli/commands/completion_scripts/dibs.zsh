#compdef dibs
# zsh completion for dibs:  dibs completion zsh > a file called _dibs in a folder of $fpath
_dibs() {
    local line
    local -a found
    for line in "${(@f)$(command dibs __complete -- "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}"; do
        if [[ $line == :files ]]; then
            _files
        elif [[ -n $line ]]; then
            found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
        fi
    done
    (( $#found )) && _describe dibs found
}
if [ "$funcstack[1]" = _dibs ]; then _dibs "$@"; else compdef _dibs dibs; fi
