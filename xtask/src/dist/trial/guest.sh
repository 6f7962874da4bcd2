#!/bin/sh
# Runs as root in a virtual machine with systemd: installs the packages, uses them, upgrades and purges
# them. Lines that begin with "row: " go into the report. Powers off at the end.
exec > /dev/console 2>&1 < /dev/null
export PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 NO_COLOR=1
cd /root

# check WHAT COMMAND…: reports if the command succeeds.
check() {
    what=$1
    shift
    if "$@" > /tmp/said 2>&1; then
        echo "row: ok: $what"
    else
        echo "row: FAILED: $what: $(tr '\n' ';' < /tmp/said | tail -c 500)"
    fi
}

# eventually COMMAND…: waits until the command succeeds, at most 90 s.
eventually() {
    end=$(($(date +%s) + 90))
    until "$@"; do
        [ "$(date +%s)" -lt $end ] || return 1
        sleep 0.2
    done
}

# as_alice COMMAND…: runs a command as a user without rights, in her home.
as_alice() { setpriv --reuid=alice --regid=alice --init-groups env HOME=/home/alice sh -c 'cd; exec "$@"' sh "$@"; }

value() { systemctl show --value --property "$1" streamline.service; }
is_active() { systemctl --quiet is-active "$1"; }
lists() { streamline ps | grep -q "$1"; }

files() {
    find / -xdev \( -path /proc -o -path /sys -o -path /tmp -o -path /var/log -o -path /var/cache \
        -o -path /var/lib/dpkg -o -path /root -o -path /home -o -path /var/lib/systemd/timers \
        -o -path /var/lib/private -o -path /var/lib/apt -o -path /var/tmp -o -path /lost+found \) -prune -o -print |
        grep -v '^/etc/.*-$' | sort
}

echo "row: $(. /etc/os-release; echo "$PRETTY_NAME"), Linux $(uname -r), $(systemctl --version | head -n 1)"
useradd --create-home alice
ip link set lo up
files > /tmp/before

# What a new user does, with the time since the first command.
began=$(date +%s%N)
elapsed() { echo "$((($(date +%s%N) - began) / 1000000)) ms after the start of the installation"; }
check 'install' apt-get install --yes --no-install-recommends ./now/*.deb
echo "row: installed $(elapsed)"
streamline 'rx lo | print' > /tmp/lines 2> /tmp/line.errors &
viewed=$!
line_is_printed() { ping -c 1 -W 1 127.0.0.1 > /dev/null; grep -q icmp /tmp/lines; }
check 'the first line in the terminal' eventually line_is_printed
echo "row: $(elapsed): $(head -n 1 /tmp/lines | cut -c1-100)"
streamline page > /tmp/page.url 2> /tmp/page.errors &
page=$!
# Reads the figures of the page, as its script does, until the path is among them.
path_is_in_the_page() {
    eventually grep -q '#token=' /tmp/page.url || { cat /tmp/page.errors; return 1; }
    timeout 90 python3 -c '
import sys, urllib.request
url, token = open("/tmp/page.url").read().strip().split("#token=")
headers = {"Authorization": "Bearer " + token}
with urllib.request.urlopen(urllib.request.Request(url + "api/live", headers=headers)) as events:
    sys.exit(next(0 for line in events if b"rx lo | print" in line))'
}
check 'the path in the page' path_is_in_the_page
echo "row: $(elapsed)"
kill -INT $page $viewed
wait $page $viewed
check 'the socket listens' is_active streamline.socket
echo "row: $(streamline --version | tr '\n' ';')"
check 'manual' man -w streamline-run
check 'completion' bash -c '. /usr/share/bash-completion/completions/streamline && complete -p streamline'
check 'Python' python3 -c 'import streamline
with streamline.run("generate count=3 | count") as path:
    path.wait()
assert path.report()["lost"] == 0, path.report()'
printf '#include <streamline.h>\nint main(void) { return streamline_error() == 0; }\n' > /tmp/c.c
check 'C' sh -c 'cc -o /tmp/c /tmp/c.c $(pkg-config --cflags --libs streamline) && /tmp/c'

as_alice streamline examples --write examples > /dev/null
check 'first request, of a user' as_alice streamline 'replay examples/web.pcap | tcp | http |exchange weblog /tmp/access.log'
check 'its log' grep -q 'GET /' /tmp/access.log
echo "row: $(head -n 1 /tmp/access.log)"

live() {
    streamline run "rx lo | bpf \"icmp\" | count" > /tmp/live 2>&1 &
    process=$!
    eventually lists 'rx lo' || return 1
    ping -c 3 -i 0.2 127.0.0.1 > /dev/null
    kill -INT $process
    wait $process
    status=$?
    cat /tmp/live
    return $status
}
check 'live request' live
echo "row: $(tr '\n' ';' < /tmp/live | cut -c1-200)"

check 'the service runs on demand' is_active streamline.service
echo "row: $(systemctl show --property Type,User,StatusText,WatchdogUSec,NRestarts streamline.service | tr '\n' ' ')"
daemon=$(value MainPID)
echo "row: capabilities $(sed -n 's/^CapEff:\t//p' /proc/"$daemon"/status) of user $(stat -c %U /proc/"$daemon")"

# A user without rights reads from the program that the daemon has in the kernel.
mkdir -p /etc/streamline
{ cat /usr/share/streamline/policy.toml; printf '[[open]]\nusers = ["alice"]\ninterfaces = ["lo"]\n'; } > /etc/streamline/policy.toml
check 'restart with a policy' systemctl restart streamline.service
shared() {
    as_alice streamline run 'rx lo | ip | udp | dport |53 count' > /tmp/shared 2>&1 &
    process=$!
    if ! eventually lists 'dport |53'; then
        cat /tmp/shared
        return 1
    fi
    for packet in 1 2 3; do bash -c 'echo hello > /dev/udp/127.0.0.1/53'; done
    streamline ps > /tmp/ps
    pkill -INT -u alice streamline
    wait $process
    status=$?
    cat /tmp/ps /tmp/shared
    return $status
}
# Programs are attached by TCX.
if [ "$(printf '%s\n' 6.6 "$(uname -r)" | sort -V | head -n 1)" = 6.6 ]; then
    check 'a user shares the program in the kernel' shared
    echo "row: $(grep -A 1 KERNEL /tmp/ps | tr '\n' ';')"
else
    echo "row: left out: sharing a program in the kernel needs Linux 6.6"
fi

as_alice streamline start web 'generate rate=1000 | count' > /tmp/said 2>&1
check 'a path in the background' eventually lists web
path=$(pgrep -u alice -f 'generate rate' | head -n 1)

# The page of all users: alice's process acts as alice, and ends when nobody looks.
check 'the page of all users is off' sh -c '! systemctl --quiet is-active streamline-page.service'
check 'it is enabled' systemctl enable --now streamline-page.service
# Reads the figures of alice's page until her path is among them.
alice_sees_her_path() {
    as_alice streamline page > /tmp/alice.url || return 1
    timeout 90 python3 -c '
import json, sys, urllib.request
url, token = open("/tmp/alice.url").read().strip().split("#token=")
headers = {"Authorization": "Bearer " + token}
def names(line):
    return [path["name"] for path in json.loads(line[6:])["paths"] if path["yours"]]
with urllib.request.urlopen(urllib.request.Request(url + "api/live", headers=headers)) as events:
    sys.exit(next(0 for line in events if line.startswith(b"data: ") and "web" in names(line)))'
}
check 'alice sees her path in it' alice_sees_her_path
check 'by a process of hers' pgrep -u alice -f -- --of-user
not_runs() { ! pgrep -f -- "$1" > /dev/null; }
check 'which ends when nobody looks' eventually not_runs --of-user
check 'root has another page' sh -c 'streamline page > /tmp/root.url && ! cmp -s /tmp/root.url /tmp/alice.url'
echo "row: $(journalctl --quiet --output cat --unit streamline-page | tail -n 2 | tr '\n' ';')"

restarts=$(value NRestarts)
kill -STOP "$(value MainPID)"
restarted() { [ "$(value NRestarts)" -gt "$restarts" ] && is_active streamline.service; }
check 'the watchdog restarts a daemon that hangs' eventually restarted
check 'the path is still listed' lists web
listed=$(streamline ps | grep web)

daemon=$(value MainPID)
check 'upgrade' apt-get install --yes --no-install-recommends ./next/*.deb
echo "row: now $(dpkg-query -W -f '${Version}' streamline)"
check 'the service runs' is_active streamline.service
check 'the page of all users runs' alice_sees_her_path
check 'it is another process' [ "$(value MainPID)" != "$daemon" ]
check 'the path is the same process' [ "$path" = "$(pgrep -u alice -f 'generate rate' | head -n 1)" ]
row_of_web() { awk '/ web / { print $1, $2, $3 }'; }
check 'the path is listed as before' [ "$(streamline ps | row_of_web)" = "$(echo "$listed" | row_of_web)" ]
echo "row: $listed"
check 'the path answers' streamline stop web

check 'purge' dpkg -P libstreamline-dev libstreamline streamline-page streamline
files > /tmp/after
check 'nothing is left' diff /tmp/before /tmp/after
check 'no directory in /run is left' sh -c '! ls -d /run/streamline*'
check 'no process is left' eventually not_runs streamline
check 'no user is left' sh -c '! getent passwd streamline && ! getent group streamline'
check 'no unit is left' sh -c '! systemctl cat streamline.service streamline.socket streamline-page.service'
check 'no message of a failure is left' sh -c '! systemctl --failed --no-legend | grep streamline'
echo "row: done"
sync
systemctl poweroff --force --force
