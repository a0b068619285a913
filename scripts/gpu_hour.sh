#!/usr/bin/env bash
# What to measure in one hour of a GPU, step by step, each with a budget of seconds.
#
#   scripts/gpu_hour.sh [--dry_run] [--steps FILE] [--seconds N] [FOLDER]
#
# FOLDER (default: gpu_hour) gets a folder a step with log.txt and what the step writes, and summary.tsv. A step that was
# finished is skipped when the same command is given again; one that failed or ran out of its budget is begun again.
# Weights and data have to be in the caches (ttmbench download). --steps: another plan than gpu_hour.tsv beside this file,
# whose lines are a name, seconds and a command, separated by tabs. --seconds: of all steps together (default: 3600).
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
steps=$here/gpu_hour.tsv folder=gpu_hour total=3600 dry_run=
while [ $# -gt 0 ]; do
  case $1 in
    --dry_run) dry_run=1 ;;
    --steps) steps=$2; shift ;;
    --seconds) total=$2; shift ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    -*) echo "gpu_hour.sh: unknown option $1; see --help" >&2; exit 2 ;;
    *) folder=$1 ;;
  esac
  shift
done
[ -f "$steps" ] || { echo "gpu_hour.sh: no file $steps" >&2; exit 2; }
steps=$(cd "$(dirname "$steps")" && pwd)/$(basename "$steps")
case $folder in /*) ;; *) folder=$PWD/$folder ;; esac
cd "$here/.." || exit 2

state() { # of a step: done, failed N, out of time, or waiting
  cat "$folder/$1/state" 2>/dev/null || echo waiting
}

summary() { # of all steps so far, rewritten after each
  local name budget command
  printf 'step\tstate\tseconds\tbudget\n'
  while IFS=$'\t' read -r name budget command; do
    printf '%s\t%s\t%s\t%s\n' "$name" "$(state "$name")" "$(cat "$folder/$name/seconds" 2>/dev/null || echo -)" "$budget"
  done < <(plan)
}

plan() {
  grep -v '^#' "$steps" | grep .
}

if [ -n "$dry_run" ]; then
  all=0
  while IFS=$'\t' read -r name budget command; do
    state=$(state "$name")
    [ "$state" = done ] || all=$((all + budget))
    printf '%-18s %5ss  %-12s %s\n' "$name" "$budget" "$state" "$command"
  done < <(plan)
  echo "$all seconds at most, of $total; results in $folder"
  exit 0
fi

mkdir -p "$folder" || exit 2
export RUNS=$folder/runs
started=$SECONDS code=0
while IFS=$'\t' read -r name budget command <&3; do
  if [ "$(state "$name")" = done ]; then
    echo "$name: done before"
    continue
  fi
  left=$((total - (SECONDS - started)))
  if [ $left -le 0 ]; then
    echo "$name: the $total seconds are over"
    code=1
    continue
  fi
  [ "$budget" -le $left ] || budget=$left
  export OUT=$folder/$name
  mkdir -p "$OUT"
  echo "$name: at most $budget s: $command"
  began=$SECONDS
  timeout --kill-after=15 "$budget" bash -c "$command" < /dev/null > "$OUT/log.txt" 2>&1
  result=$?
  case $result in
    0) outcome=done ;;
    124 | 137) outcome="out of time" code=1 ;;
    *) outcome="failed $result" code=1 ;;
  esac
  echo $((SECONDS - began)) > "$OUT/seconds"
  echo "$outcome" > "$OUT/state"
  summary > "$folder/summary.tsv"
  echo "$name: $outcome after $((SECONDS - began)) s, $OUT/log.txt"
done 3< <(plan)
summary > "$folder/summary.tsv"
cat "$folder/summary.tsv"
exit $code
