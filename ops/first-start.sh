#!/bin/sh
# Before the first start of a container: write its configuration, with keys of its own.
#
#   first-start.sh [DIRECTORY]        /etc/braidmq unless another is named
#
# Does nothing when the configuration is there. Beside it come two keys, each in a file:
# admin.key, which may do everything, and metrics.key, which Prometheus reads and which may
# only look at numbers.
set -eu
umask 027

directory=${1:-/etc/braidmq}
base=${BRAIDMQ_BASE:-/usr/share/braidmq/container.toml}

if [ -e "$directory/braidmq.toml" ]; then
    exit 0
fi

# BRAIDMQ_CONFIG names what is not there yet.
unset BRAIDMQ_CONFIG
new_key() {
    name=$1
    shift
    braidmq keys new --name "$name" "$@" > "$directory/$name.new"
    sed -n 's/^#   //p' "$directory/$name.new" | tr -d '\n' > "$directory/$name.key"
    # The file gets the hash only; the key itself is in the comment above it.
    grep -v '^#' "$directory/$name.new" >> "$directory/braidmq.toml.new"
    rm "$directory/$name.new"
}

cp "$base" "$directory/braidmq.toml.new"
new_key admin --admin --publish '*' --subscribe '*'
new_key metrics
chmod 0644 "$directory/metrics.key"
chmod 0755 "$directory"
chmod 0600 "$directory/admin.key" "$directory/braidmq.toml.new"
mv "$directory/braidmq.toml.new" "$directory/braidmq.toml"
echo "wrote $directory/braidmq.toml; the key for everything is in $directory/admin.key"
