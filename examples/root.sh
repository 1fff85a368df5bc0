# Builds a root that holds sh, cat and python3 and nothing else, and runs a program in it.
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

ramet root build "$root/small" --bin sh --bin cat --bin python3
ramet run --root "$root/small" -- python3 -c 'import os, sys; print(sys.version.split()[0], sorted(os.listdir("/")))'
ramet run --root "$root/small" 'cat /etc/passwd; echo changed >/note; cat /note'
test ! -e "$root/small/note"
echo 'the root itself is as it was'
