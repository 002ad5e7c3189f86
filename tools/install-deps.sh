#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what the build and the tests need from Debian 12's own packages, and only what is missing. `install-deps.sh programs`: without
# what only tests and pictures need.
set -eu
case ${1:-} in -h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac

packages="
build-essential cmake ninja-build pkg-config
libgrpc-dev protobuf-compiler protobuf-c-compiler libprotobuf-c-dev
libucx-dev libssl-dev openssl ca-certificates
libcmocka-dev libmicrohttpd-dev libgnutls28-dev libjwt-dev libcurl4-openssl-dev libzip-dev libedit-dev libjansson-dev libyaml-dev libpcre2-dev libxxhash-dev libutf8proc-dev libsqlite3-dev zlib1g-dev
python3 python3-protobuf
"
[ "${1:-}" = programs ] || packages="$packages
ucx-utils
clang-14 libclang-rt-14-dev
etcd-server curl
python3-grpcio python3-pip python3-numpy python3-matplotlib python3-yaml
manpages
"

# The fast AES-GCM of x86 (docs/LIBRARIES.md); elsewhere OpenSSL's serves.
[ "$(dpkg --print-architecture 2>/dev/null)" != amd64 ] || packages="$packages libipsec-mb-dev"

if ! command -v dpkg-query >/dev/null; then
    echo "install-deps: this is not a Debian system; install the equivalents of:" $packages >&2
    exit 1
fi

missing=""
for package in $packages; do
    # Exactly "installed": a removed package whose configuration is still there has a status too.
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -eq 0 ]; then
    as_root=""
elif command -v sudo >/dev/null; then
    as_root="sudo"
else
    echo "install-deps: run this as root, or install sudo; missing packages:$missing" >&2
    exit 1
fi

echo "install-deps: installing$missing"
$as_root apt-get update -qq
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing

# The package starts a server that is not needed here: tests start their own.
case "$missing" in
*etcd-server*) if [ -d /run/systemd/system ]; then $as_root systemctl disable --now etcd; fi ;;
esac
