# fish completion for dibs:  dibs completion fish | source
function __dibs_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    for line in (command dibs __complete -- $words[2..] "$current" 2>/dev/null)
        if test "$line" = :files
            __fish_complete_path "$current"
        else
            printf '%s\n' $line
        end
    end
end
complete -c dibs -f -a '(__dibs_complete)'
