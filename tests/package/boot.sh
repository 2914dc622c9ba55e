#!/bin/sh
# boot.sh - the installed service under systemd as the first process; scripts/package-check --boot runs it in a container.
#
# /check has next.deb (a later version) and tiny.gguf.  The last line of /check/out is "passed".
set -eu
exec >/check/out 2>&1
set -x
fail() { echo "FAILED: $*"; journalctl --no-pager -u inferd | tail -20; exit 1; }
status() { curl -s -o /dev/null --max-time 20 -w '%{http_code}' "http://127.0.0.1:8080$1"; }
pid() { systemctl show -P MainPID inferd; }
wait_for() { # a status of /ready
    n=0
    while [ "$(status /ready)" != "$1" ]; do
        n=$((n + 1))
        [ $n -lt 200 ] || fail "/ready is not $1"
        sleep 0.1
    done
}
ask() {
    curl -sS --max-time 60 -o /check/answer -w '%{http_code}\n' http://127.0.0.1:8080/v1/completions \
        -H 'Content-Type: application/json' -d '{"model":"tiny","prompt":"a b c","max_tokens":8}'
}

# It was enabled by the installation, and started with the machine.
systemctl is-active inferd
[ "$(status /ready)" = 503 ]
[ "$(status /health)" = 200 ]
grep -E '^(Uid|CapEff|NoNewPrivs|Seccomp):' "/proc/$(pid)/status"
grep -qx 'NoNewPrivs:	1' "/proc/$(pid)/status"
grep -qx 'Seccomp:	2' "/proc/$(pid)/status"
grep -qx 'CapEff:	0000000000000000' "/proc/$(pid)/status"
[ "$(stat -c %U "/proc/$(pid)")" = inferd ]
inferd ctl state

# A reload brings the first model.
install -m 644 /check/tiny.gguf /var/lib/inferd/models/
models='[{"name": "tiny", "path": "/var/lib/inferd/models/tiny.gguf"}]'
echo "{\"state_dir\": \"/var/lib/inferd\", \"models\": $models}" >/etc/inferd/inferd.json
systemctl reload inferd
wait_for 200
[ "$(ask)" = 200 ] || fail "$(cat /check/answer)"

# systemd holds both addresses: restarts and an upgrade under load lose no request.
systemctl stop inferd
systemctl enable --now inferd.socket inferd-admin.socket
systemctl start inferd
journalctl --no-pager -u inferd | grep 'event=socket_passed for=requests address=127.0.0.1:8080'
journalctl --no-pager -u inferd | grep 'event=socket_passed for=administrators address=unix:/run/inferd/admin.sock'
touch /check/load
(set +x; while [ -e /check/load ]; do ask || echo lost; done >/check/statuses 2>&1) &
load=$!
before=$(pid)
systemctl restart inferd
systemctl restart inferd
DEBIAN_FRONTEND=noninteractive dpkg --force-confold -i /check/next.deb
[ "$(dpkg-query -W -f '${Version}' inferd)" = 99-1 ]
systemctl is-active inferd
[ "$(pid)" != "$before" ]
[ "$(systemctl show -P RestartUSec inferd)" = 6s ] # of the new unit
rm /check/load
wait $load
sort /check/statuses | uniq -c
[ "$(sort -u /check/statuses)" = 200 ] || fail "a request was lost"

# The group may use the admin socket, others not.
useradd --no-create-home --groups inferd alice
useradd --no-create-home bob
setpriv --reuid=alice --regid=alice --init-groups inferd ctl state
if setpriv --reuid=bob --regid=bob --init-groups inferd ctl state; then fail "bob may use the admin socket"; fi

# A process that hangs is replaced.
mkdir -p /run/systemd/system/inferd.service.d
printf '[Service]\nWatchdogSec=2\nRestartSec=0\n' >/run/systemd/system/inferd.service.d/check.conf
systemctl daemon-reload
systemctl restart inferd
before=$(pid)
kill -STOP "$before"
[ "$(ask)" = 200 ] || fail "the request that waited for the next process: $(cat /check/answer)"
[ "$(pid)" != "$before" ]
[ "$(systemctl show -P NRestarts inferd)" = 1 ]
journalctl --no-pager -u inferd | grep -i 'watchdog timeout'

dpkg --purge inferd
if systemctl is-active inferd inferd.socket inferd-admin.socket; then fail "it runs on"; fi
if curl -s --max-time 5 http://127.0.0.1:8080/health; then fail "the address is still served"; fi
echo passed
