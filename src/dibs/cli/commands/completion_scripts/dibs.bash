# bash completion for dibs:  source <(dibs completion bash)
_dibs() {
    local word line current= last=${COMP_WORDS[COMP_CWORD]}
    local -a words=()
    # bash splits words at a colon or an equals sign: join them again.
    for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
        if [[ ${#words[@]} -gt 0 && ( $word == [:=]* || $current == *[:=] ) ]]; then
            current+=$word; words[${#words[@]}-1]=$current
        else
            current=$word; words+=("$word")
        fi
    done
    [[ $last == [:=] ]] && last=
    local typed=${current%"$last"}  # bash keeps this part: do not offer it again
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ $line == :files ]]; then
            while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -f -- "$current")
            continue
        fi
        word=${line%%$'\t'*}
        [[ $word == "$current"* ]] && COMPREPLY+=("$(printf %q "${word#"$typed"}")")
    done < <(command dibs __complete -- "${words[@]}" 2>/dev/null)
}
complete -F _dibs dibs
