#!/bin/busybox sh
# The first process of a guest: makes a system of what there is, runs the exams, powers off.
# Lines that begin with "row: " go into the table.
/bin/busybox --install -s /bin
export PATH=/bin RUST_BACKTRACE=0
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
# Whoever made the first file system made no console.
exec > /dev/ttyS0 2>&1 < /dev/null
echo "init: $(uname -r)"
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mkdir -p /run/netns /dev/shm
mount -t tmpfs shm /dev/shm
# `ip` of busybox knows no namespaces: ours is meant by its path.
for module in llc stp garp mrp 8021q veth sch_ingress cls_bpf act_bpf; do
    [ -e "/modules/$module.ko" ] && insmod "/modules/$module.ko"
done
/bin/ip link set dev lo up
cd /tmp
export CARGO_TARGET_DIR=/tmp/target

exam() {
    /bin/exam --nocapture --test-threads=1 "$@" > /tmp/log 2>&1
    status=$?
    cat /tmp/log
    grep -o 'row: .*' /tmp/log | sort -u
    grep '^skipped: ' /tmp/log | sort -u | sed 's/^/row: /'
    [ $status = 0 ] || echo "row: FAILED: $*"
}

exam --ignored --exact floors::every_generated_program_loads
exam live::

# A tap, live: the user's own line over a pair of devices.
/bin/ip netns add far
/bin/ip link add near type veth peer name other netns far
/bin/ip address add 10.9.0.1/24 dev near
/bin/ip link set dev near up
/bin/ip -n far address add 10.9.0.2/24 dev other
/bin/ip -n far link set dev other up
/bin/streamline run 'rx near | ip | count' > /tmp/tap 2>&1 &
tap=$!
for turn in 1 2 3 4 5 6 7 8 9 10; do
    /bin/ip netns exec far ping -c 1 -W 1 10.9.0.1 > /dev/null 2>&1
done
kill -INT $tap
wait $tap
status=$?
cat /tmp/tap
echo "row: tap: exit $status: $(tr '\n' ';' < /tmp/tap | cut -c1-300)"
[ $status = 0 ] || echo "row: FAILED: tap"
echo "row: done"
sync
poweroff -f
