#!/usr/bin/env bash
# Installs the Debian packages that MPI jobs and the tests need; does nothing where they are there. Needs apt and root.
# `apt.sh cluster` installs only what the cluster of the tests needs, `apt.sh browser` only the browser of the tests.
set -euo pipefail
cluster=(containerd runc containernetworking-plugins iproute2 openssl openmpi-bin openssh-client openssh-server)
browser=(chromium fonts-dejavu-core)
packages=(libopenmpi-dev g++ cmake "${cluster[@]}" "${browser[@]}")
case "${1:-}" in
  cluster) packages=("${cluster[@]}") ;;
  browser) packages=("${browser[@]}") ;;
esac

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
[ "${#missing[@]}" -gt 0 ] || exit 0

command -v apt-get >/dev/null || { echo "apt: this is no Debian; install by hand: ${missing[*]}" >&2; exit 2; }
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "apt: run as root: apt-get install ${missing[*]}" >&2; exit 2; }
  as_root=(sudo)
fi
echo "apt: installing ${missing[*]}"
# The pods of an MPI job run sshd; this machine itself is not opened to others. The file is Debian's own switch.
case " ${missing[*]} " in
  *" openssh-server "*) "${as_root[@]}" mkdir -p /etc/ssh && "${as_root[@]}" touch /etc/ssh/sshd_not_to_be_run ;;
esac
"${as_root[@]}" apt-get update -q >/dev/null
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null
