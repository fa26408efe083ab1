# --- the workload -----------------------------------------------------------------------------------------------------

hr_workload() { # becomes the user's process; everything that the agent set is undone before
  exec </dev/null >"$hr_dir/stdout" 2>/dev/null 8>&- 9>&-
  local prefix=()
  ((${#hr_odd_env[@]})) && prefix=("$(type -P env)" -- "${hr_odd_env[@]}")
  umask "$hr_umask"
  if [[ -n ${hr_lc_all+set} ]]; then LC_ALL=$hr_lc_all; else unset LC_ALL; fi
  hr_export
  exec 2>"$hr_dir/stderr"
  if [[ ${hr_argv[0]} != */* ]] && ! type -P -- "${hr_argv[0]}" >/dev/null; then
    printf 'headrace: %s: command not found\n' "${hr_argv[0]}" >&2
    exit 127
  fi
  exec -- "${prefix[@]}" "${hr_argv[@]}"
}

hr_supervise() { # runs the workload in a process group of its own and says how it ended
  local pid status signal=0 notice
  exec </dev/null >/dev/null 2>>"$hr_dir/notice"
  set -m
  hr_workload &
  pid=$!
  echo "pid $pid" >&8
  while :; do
    wait "$pid"
    status=$?
    # With job control a wait also ends when the job is stopped (SIGSTOP): then the process is still there.
    kill -0 "$pid" 2>/dev/null || break
    hr_pause 200
    : >"$hr_dir/notice"
  done
  kill -KILL -- "-$pid" 2>/dev/null
  # Only a job that died of a signal is announced by its name ("Killed"); a status of 128 + n is not, or as "Exit".
  jobs >&2
  read -r -d '' notice <"$hr_dir/notice"
  [[ -z $notice || $notice == *Exit* || $notice == *Done* ]] || signal=$((status - 128))
  echo "exit $status $signal" >&8
}
