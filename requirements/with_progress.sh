#!/bin/sh
# with_progress.sh COMMAND...: run it; say every 5 seconds how far the environment has grown (pip is silent while it unpacks).
start=$(date +%s)
{
    while sleep 5 >/dev/null && kill -0 $$ 2>/dev/null; do
        echo "      $(($(date +%s) - start)) s, $(du -sm .venv 2>/dev/null | cut -f1) MB in .venv"
    done
} &
progress=$!
trap 'kill $progress 2>/dev/null' EXIT
trap 'exit 130' INT TERM
"$@"
