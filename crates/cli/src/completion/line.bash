
# Completes a line of filters, in quotes or not; all else is left to the function above.
_streamline_or_line() {
    local typed="${COMP_WORDS[COMP_CWORD]}"
    local line="${typed#[\'\"]}"
    if [[ $COMP_CWORD -gt 1 && $typed == -* ]]; then
        _streamline "$@"
        return
    fi
    if [[ $COMP_CWORD -gt 1 && ${COMP_WORDS[1]} =~ ^(stop|attach|top|spaces|set|tap|schema)$ ]]; then
        local words
        words="$(streamline complete -- "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null)"
        COMPREPLY=($(compgen -W "$words" -- "$typed"))
        return
    fi
    # These take no request.
    if [[ $COMP_CWORD -gt 1 && ${COMP_WORDS[1]} =~ ^(bench|completion|daemon|examples|filters|man|mount|page|ps|state)$ ||
        $COMP_CWORD -eq 2 && ${COMP_WORDS[1]} == doctor ]]; then
        _streamline "$@"
        return
    fi
    if [[ $COMP_CWORD -eq 1 && $typed == "$line" ]]; then
        _streamline "$@"
        [[ ${#COMPREPLY[@]} -gt 0 ]] && return
    fi
    COMPREPLY=()
    while IFS= read -r way; do
        COMPREPLY+=("$way")
    done < <(streamline complete --line "$line" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -eq 0 ]]; then
        _streamline "$@"
        return
    fi
    # bash closes the quote behind a candidate that is the only one, but a request goes on.
    if [[ ${#COMPREPLY[@]} -eq 1 && $typed != "$line" ]]; then
        COMPREPLY+=("${COMPREPLY[0]} ")
    fi
    compopt -o nospace 2>/dev/null
}
complete -F _streamline_or_line -o bashdefault -o default streamline
