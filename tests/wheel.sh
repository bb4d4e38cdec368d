#!/bin/sh
# The built wheel in a clean environment without development tools: help, index, query.
# usage: wheel.sh PYTHON DIST
set -eu
python=$1
dist=$(cd "$2" && pwd)
root=$(pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/venv"
wheel=$(ls -t "$dist"/attendex-*.whl | head -n 1)
"$work/venv/bin/pip" install -q -c "$root/constraints.txt" "$wheel[offline]"
cd "$work"

names=$("$work/venv/bin/python" -m zipfile -l "$wheel")
echo "$names" | grep -q '^engine/migrations/versions/0001_first.py '
echo "$names" | grep -q '^engine/py.typed '
echo "$names" | grep -q '^engine/samples/WORDNET-LICENSE '
if echo "$names" | grep -E '^(migrations|tests|benchmarks)/'; then
    echo "the wheel carries what it should not" >&2
    exit 1
fi

attendex=$work/venv/bin/attendex
"$attendex" --help >/dev/null
printf 'a thermometer measures temperature\nthe dog barks\n' >texts.txt
"$attendex" index texts.txt --offline
"$attendex" query "how warm is it" -k 1 --offline | grep -q '"id": "texts.txt:1"'
"$attendex" status --table
echo "the wheel works"
