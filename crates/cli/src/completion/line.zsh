
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
    _streamline "$@"
}
