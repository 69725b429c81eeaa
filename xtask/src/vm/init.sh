#!/usr/bin/busybox sh
# The first process of a guest: makes it a small Debian, runs what /vm/run lists, and powers off.
# Standard output is the console. What the tests found goes out over the second serial line, so that nothing the kernel
# prints comes between: `# unit NAME` or `# suite NAME`, then what that printed or recorded, `# end STATUS`, at last `# done`.

export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8
busybox mount -t proc -o nosuid,nodev,noexec proc /proc
busybox mount -t sysfs -o nosuid,nodev,noexec sysfs /sys
busybox mount -t devtmpfs -o nosuid devtmpfs /dev
busybox mkdir -p /dev/pts /dev/shm
busybox mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
busybox mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs /dev/shm
busybox mount -t tmpfs -o nosuid,nodev,mode=755 tmpfs /run
busybox mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs /tmp
busybox mount -t securityfs securityfs /sys/kernel/security
busybox mount -t tracefs tracefs /sys/kernel/tracing
busybox mount -t bpf -o mode=700 bpf /sys/fs/bpf
busybox mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 /sys/fs/cgroup
busybox --install -s
ln -s /proc/self/fd /dev/fd
ln -s /proc/self/fd/0 /dev/stdin
ln -s /proc/self/fd/1 /dev/stdout
ln -s /proc/self/fd/2 /dev/stderr
chown -R 1000:1000 /home/ada
chown -R 1001:1001 /home/ben
hostname guest
ip link set lo up
echo "guest: Linux $(uname -r), security modules: $(cat /sys/kernel/security/lsm)"

if [ -n "$guest_shell" ]; then
    setsid cttyhack bash -l
    poweroff -f
fi
# Whoever started the guest may be gone.
(sleep "${guest_limit:-300}" && poweroff -f) &

results=/dev/ttyS1
# Held open: its settings last only as long as somebody has it open.
exec 3> $results < /dev/null
stty -F $results raw
set -o pipefail

# NAME PROGRAM [ARGUMENTS…]: a program of unit tests
unit() {
    echo "# unit $1" >&3
    shift
    "$@" --test-threads=1 --show-output 2>&1 | tee $results
    echo "# end $?" >&3
}

# NAME PROGRAM [FILTER…]: a suite
suite() {
    echo "# suite $1" >&3
    shift
    "$@" --record $results
    echo "# end $?" >&3
}

export RINGFENCE_STAGE=/vm/programs RINGFENCE_TEST_RUN=guest RINGFENCE_GUEST=1
cd /vm
. /vm/run
echo "# done" >&3
exec 3>&-
poweroff -f
