#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# One image with every program of Sluice, made of Debian 12's packages: no shell, no package manager, no setuid file, user 65532.
set -eu

usage() {
    cat <<USAGE
Usage: deploy/image/build.sh [options]
Make an image of the programs in build/bin, which were built on Debian 12: the plain root folder OUT/root and, where buildah is
installed, the OCI archive OUT/sluice-VERSION.oci.tar. Prints the size of both. As root, or where users may make namespaces.

  --bin DIR       the programs [build/bin]
  --out DIR       where to write; OUT/root is made anew [build/image]
  --tag NAME      name of the image in the archive [sluice:VERSION]
  --model DIR     put this model into the image too, as /models/NAME; may be given again
  --cuda FILE     the plugin for GPUs, libsluice_cuda.so (make gpu), beside the programs
  --etcd          etcd too, for the component ha
  --mirror URL    Debian's archive [mmdebstrap's own choice]
  --no-archive    the root folder alone
  --help          print this and exit

Needs mmdebstrap, binutils and, for the archive, buildah. Load it with \`podman load -i\` or \`docker load -i\`, or push it by
\`buildah push oci-archive:FILE docker://HOST/NAME\`.
USAGE
}

project=$(cd "$(dirname "$0")/../.." && pwd)
bin=$project/build/bin out=$project/build/image tag= mirror= models= cuda= etcd= archive=yes
while [ $# -gt 0 ]; do
    case $1 in
    --help) usage; exit 0 ;;
    --no-archive) archive=; shift; continue ;;
    --etcd) etcd=yes; shift; continue ;;
    --bin | --out | --tag | --model | --cuda | --mirror) ;;
    *) echo "build.sh: unknown option $1; see --help" >&2; exit 2 ;;
    esac
    [ $# -ge 2 ] || { echo "build.sh: $1 needs a value; see --help" >&2; exit 2; }
    case $1 in
    --bin) bin=$2 ;;
    --out) out=$2 ;;
    --tag) tag=$2 ;;
    --model) models="$models $2" ;; # of a path without spaces
    --cuda) cuda=$2 ;;
    --mirror) mirror=$2 ;;
    esac
    shift 2
done

programs="sluice sluice-coordinator sluice-gateway sluice-prefill sluice-decode sluice-kvstore"
for program in $programs; do
    [ -x "$bin/$program" ] || { echo "build.sh: $bin/$program is not there: make programs" >&2; exit 1; }
done
for tool in mmdebstrap objdump strip dpkg-query; do
    command -v $tool >/dev/null || { echo "build.sh: $tool is not installed (apt-get install mmdebstrap binutils)" >&2; exit 1; }
done
version=$("$bin/sluice-coordinator" --version | cut -d' ' -f2)
tag=${tag:-sluice:$version}
# Two builds of one commit give files the same times.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$project" log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH

# The packages that hold what the programs name as needed; apt adds what those need. Drivers of RDMA devices are opened by name.
packages=ibverbs-providers
for program in $programs; do
    for library in $(objdump -p "$bin/$program" | awk '$1 == "NEEDED" { print $2 }'); do
        path=$(ldd "$bin/$program" | awk -v name="$library" '$1 == name { print $3 }')
        case $path in "") continue ;; esac # the loader, which comes with libc
        package=$(dpkg-query -S "$path" 2>/dev/null || dpkg-query -S "/usr$path") || {
            echo "build.sh: $library of $program is of no package: the programs are built on Debian 12" >&2
            exit 1
        }
        packages="$packages,${package%%:*}"
    done
done
packages=$(echo "$packages" | tr , '\n' | sort -u | paste -s -d,)

root=$out/root
rm -rf "$root"
mkdir -p "$out"
echo "packages: $packages"
# shellcheck disable=SC2086 # the mirror is a word or none
mmdebstrap --quiet --mode="${MMDEBSTRAP_MODE:-auto}" --variant=extract --include="$packages" bookworm "$root" $mirror

# Keeps files that are opened at run time: libraries, UCX's modules, RDMA's drivers, and every package's license.
(
    cd "$root"
    mkdir kept
    for path in etc/ld.so.conf.d etc/libibverbs.d etc/libnl-3 usr/share/doc var/lib/dpkg/status; do
        [ ! -e $path ] || cp -a --parents $path kept/ # dpkg's status tells scanners which versions are here
    done
    find kept/usr/share/doc -type f ! -name copyright -delete
    rm -rf bin sbin dev etc var run usr/bin usr/sbin usr/share usr/libexec usr/games usr/lib/*-linux-gnu/gconv \
        usr/lib/*-linux-gnu/security lib/*-linux-gnu/security
    find usr/lib lib -mindepth 1 -maxdepth 1 ! -name '*-linux-*' -exec rm -rf {} +
    cp -a kept/. . && rm -rf kept
    find . -depth -type d -empty -delete
    mkdir -p bin dev/shm etc models proc run sys tmp var/lib/sluice
    echo "sluice:x:65532:65532:Sluice:/:/nowhere" >etc/passwd
    echo "sluice:x:65532:" >etc/group
    echo "hosts: files dns" >etc/nsswitch.conf
    chmod 1777 tmp dev/shm
)
for program in $programs; do
    strip --strip-unneeded -o "$root/bin/$program" "$bin/$program"
    chmod 755 "$root/bin/$program"
done
if [ -n "$etcd" ]; then # which needs libc alone, but whose package wants what makes users
    fetched=$(mktemp -d)
    (cd "$fetched" && apt-get -qq -o APT::Sandbox::User=root download etcd-server && dpkg-deb -x etcd-server_*.deb .) || { rm -rf "$fetched"; exit 1; }
    install -m 755 "$fetched/usr/bin/etcd" "$root/bin/etcd"
    install -D -m 644 "$fetched/usr/share/doc/etcd-server/copyright" "$root/usr/share/doc/etcd-server/copyright"
    rm -rf "$fetched"
fi
strip --strip-unneeded -o "$root/bin/libsluice_emulated.so" "$bin/libsluice_emulated.so"
[ -z "$cuda" ] || install -m 644 "$cuda" "$root/bin/libsluice_cuda.so"
for model in $models; do
    cp -R "$model" "$root/models/"
done
chmod -R go=u,go-w "$root/models" "$root/bin"
# `sluice pull` (deploy/components/model) verifies the package index.
[ ! -e /etc/ssl/certs/ca-certificates.crt ] || install -D -m 644 /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
install -d -o 65532 -g 65532 -m 700 "$root/var/lib/sluice" 2>/dev/null || chmod 777 "$root/var/lib/sluice"

# Fails if the image has files that it must not have.
found=$(find "$root" \( -name sh -o -name bash -o -name dash -o -name busybox -o -name perl -o -perm /6000 \) -print)
[ -z "$found" ] || { echo "build.sh: this should not be in the image: $found" >&2; exit 1; }

echo "root: $root, $(du -sm --apparent-size "$root" | cut -f1) MB"
[ -n "$archive" ] || exit 0
command -v buildah >/dev/null || { echo "archive: none, buildah is not installed"; exit 0; }

file=$out/sluice-$version.oci.tar
store=$(mktemp -d)
trap 'rm -rf "$store"' EXIT
# A store of its own that goes: nothing of this machine's containers is touched. vfs and chroot want nothing of the kernel.
ours() { buildah --root "$store/root" --runroot "$store/run" --storage-driver vfs "$@"; }
container=$(ours from scratch)
tar -C "$root" --numeric-owner -cf "$store/root.tar" . # `buildah copy` would give everything to root, also what user 65532 writes to
ours add --quiet "$container" "$store/root.tar" / >/dev/null
rm "$store/root.tar"
ours config --user 65532:65532 --env PATH=/bin --workingdir / --cmd '["/bin/sluice","--help"]' \
    --label org.opencontainers.image.title=sluice --label org.opencontainers.image.version="$version" \
    --label org.opencontainers.image.licenses=Apache-2.0 "$container"
rm -f "$file"
ours commit --quiet --timestamp "$SOURCE_DATE_EPOCH" "$container" "oci-archive:$file:$tag" >/dev/null
echo "archive: $file, $(du -m "$file" | cut -f1) MB, $tag"
