#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# An authority and certificates for a cluster that one tries out: tools/test-ca.sh DIR ROLE/NAME...
#
#     tools/test-ca.sh certs worker/prefill/prefill-0 worker/decode/decode-0
#
# makes DIR/ca.pem once, and DIR/ROLE-NAME.pem and .key for each name; CLUSTER (sluice) names the cluster, DAYS (30) their life, HOSTS
# (localhost) hosts, for clients of other libraries.
# A name with a minus in front (-worker/decode/decode-0) is taken back: its certificate is in the list DIR/revoked.pem from then on (--tls-revoked), which
# DIR has from the first such name; "-" alone writes the list anew, with what is in it.
# The authority's key lies beside them, unprotected: it is good for tests, and for nothing else.
set -eu
case ${1:-} in -h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac

[ $# -ge 2 ] || { echo "usage: $0 DIR ROLE/NAME..." >&2; exit 2; }
dir=$1
shift
cluster=${CLUSTER:-sluice}
days=${DAYS:-30}
hosts=$(echo "${HOSTS:-localhost}" | sed 's/^/DNS:/; s/[ ,][ ,]*/,DNS:/g')
umask 077
mkdir -p "$dir"

# openssl, which has much to say, heard only when it fails.
quietly() {
    openssl "$@" 2>"$dir/openssl.log" || { cat "$dir/openssl.log" >&2; exit 1; }
    rm -f "$dir/openssl.log"
}

if [ ! -e "$dir/ca.key" ]; then
    quietly req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -sha256 -days "$days" \
        -subj "/CN=$cluster test authority" -addext "basicConstraints=critical,CA:TRUE" \
        -addext "keyUsage=critical,keyCertSign,cRLSign" -keyout "$dir/ca.key" -out "$dir/ca.pem"
fi

# The list of DIR/index.txt, as `openssl ca` keeps it.
write_revoked() {
    [ -e "$dir/crlnumber" ] || echo 01 >"$dir/crlnumber"
    touch "$dir/index.txt"
    printf '[ca]\ndefault_ca = here\n[here]\ndatabase = %s/index.txt\ncrlnumber = %s/crlnumber\n' "$dir" "$dir" >"$dir/ca.conf"
    quietly ca -config "$dir/ca.conf" -gencrl -md sha256 -crldays "$days" -cert "$dir/ca.pem" -keyfile "$dir/ca.key" -out "$dir/revoked.new"
    mv "$dir/revoked.new" "$dir/revoked.pem" # atomic, for a process that reads it just now
    rm -f "$dir/ca.conf" "$dir/index.txt.attr" "$dir/crlnumber.old"
}

revoke() {
    [ -e "$dir/$1.pem" ] || { echo "$0: $dir/$1.pem: there is no such certificate" >&2; exit 2; }
    serial=$(openssl x509 -in "$dir/$1.pem" -noout -serial | sed 's/.*=//')
    printf 'R\t491231235959Z\t%s\t%s\tunknown\t/CN=%s\n' "$(date -u +%y%m%d%H%M%SZ)" "$serial" "$1" >>"$dir/index.txt"
}

for who in "$@"; do
    case $who in
    -)
        write_revoked
        continue
        ;;
    -*/*)
        revoke "$(echo "${who#-}" | tr / -)"
        write_revoked
        continue
        ;;
    */*) ;;
    *) echo "$0: \"$who\": expected ROLE/NAME, as worker/decode/decode-0" >&2; exit 2 ;;
    esac
    name=$(echo "$who" | tr / -)
    file=$dir/$name
    quietly req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -sha256 -subj "/CN=$name" \
        -keyout "$file.key" -out "$file.csr"
    printf 'basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\nsubjectAltName=URI:spiffe://%s/%s,%s,IP:127.0.0.1\n' \
        "$cluster" "$who" "$hosts" >"$file.ext"
    quietly x509 -req -in "$file.csr" -CA "$dir/ca.pem" -CAkey "$dir/ca.key" -CAcreateserial -sha256 -days "$days" \
        -extfile "$file.ext" -out "$file.pem"
    rm -f "$file.csr" "$file.ext"
done
