#!/usr/bin/env bash
# A certificate authority, the SuperLink's certificate, and one key per node: certificates.sh FOLDER NODES [HOST ...]
set -euo pipefail
folder=$1 nodes=$2
shift 2
names="DNS:localhost,IP:127.0.0.1"
for host in "$@"; do
  [[ $host =~ ^[0-9.]+$ ]] && names+=",IP:$host" || names+=",DNS:$host"
done
umask 077
mkdir -p "$folder"
cd "$folder"
openssl req -x509 -newkey rsa:3072 -nodes -days 3650 -subj "/CN=federation CA" -keyout ca.key -out ca.pem 2>/dev/null
openssl req -newkey rsa:3072 -nodes -subj "/CN=superlink" -keyout server.key -out server.csr 2>/dev/null
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 365 -out server.pem \
  -extfile <(printf 'subjectAltName=%s' "$names") 2>/dev/null
rm server.csr
for ((i = 0; i < nodes; i++)); do
  ssh-keygen -q -t ecdsa -b 384 -N "" -C "node $i" -f "node$i"
done
echo "certificates and $nodes node keys in $folder (valid for $names)"
