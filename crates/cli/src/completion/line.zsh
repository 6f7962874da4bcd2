
# Completes a line of filters in quotes; all else is left to the function above.
_streamline_or_line() {
    if [[ -n $QIPREFIX ]]; then
        local -a ways
        ways=(${(f)"$(streamline complete --line "$PREFIX" 2>/dev/null)"})
        if (( $#ways )); then
            compadd -U -Q -S '' -- $ways
            return
        fi
    fi
    if (( CURRENT > 2 )) && [[ $words[2] == (stop|attach|top|spaces|set|tap|schema) && $PREFIX != -* ]]; then
        local -a next
        next=(${(f)"$(streamline complete -- "${(@)words[2,CURRENT-1]}" 2>/dev/null)"})
        if (( $#next )); then
            compadd -- $next
            return
        fi
    fi
    _streamline "$@"
}

compdef _streamline_or_line streamline
if [ "$funcstack[1]" = "_streamline" ]; then
    _streamline_or_line "$@"
fi
