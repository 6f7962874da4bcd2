
# Completes a request in quotes, and names of running paths and of their nodes. The lines above complete
# all else.
function __streamline_in_request
    string match --quiet --regex '^[\'"]' -- (commandline --current-token --cut-at-cursor)
end
function __streamline_requests
    set --local typed (commandline --current-token --cut-at-cursor | string sub --start 2)
    set --local ways (streamline complete --line "$typed" 2>/dev/null)
    printf '%s\n' $ways
    # fish closes the quote behind a candidate that is the only one, but a request goes on.
    if test (count $ways) -eq 1; and not string match --quiet --regex '[=/]$' -- $ways
        printf '%s \n' $ways
    end
end
function __streamline_takes_names
    set --local words (commandline --tokenize --current-process --cut-at-cursor)
    contains -- "$words[2]" stop attach top spaces set tap schema completion
    and not string match --quiet -- '-*' (commandline --current-token --cut-at-cursor)
    and not __streamline_in_request
end
function __streamline_names
    set --local words (commandline --tokenize --current-process --cut-at-cursor)
    streamline complete -- $words[2..] 2>/dev/null
end
complete -c streamline -f -n __streamline_in_request -a '(__streamline_requests)'
complete -c streamline -f -n __streamline_takes_names -a '(__streamline_names)'
