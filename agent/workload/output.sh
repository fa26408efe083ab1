# --- output -----------------------------------------------------------------------------------------------------------

hr_copy() { # reader's: one dd from the FIFO to $1; sets `bytes`, and `rc`
  local number unit
  bytes=
  if ((bulk)); then
    # Sixteen full reads, for a tenth of the processes; interrupted when the flood stops before they are full.
    timeout --foreground -s INT 0.3 dd bs=$hr_read count=$((hr_chunk / hr_read)) of="$1" 2>"$stream.copied"
  else
    dd bs=$hr_read count=1 of="$1" 2>"$stream.copied"
  fi
  rc=$?
  while read -r number unit; do
    [[ $unit == byte* ]] && bytes=$number
  done <"$stream.copied"
  [[ -n $bytes || $1 == /dev/null ]] || bytes=$(wc -c <"$1")
  bytes=$((bytes))
}

hr_keep() { # reader's: `bytes` bytes are in the file of piece `piece`
  echo "piece $stream $piece $bytes" >&8
  produced=$((produced + bytes)) piece=$((piece + 1))
}

hr_mark_dropped() { # reader's: the count of what was dropped, in band, on a line of its own
  local text="[headrace] $dropped bytes of output dropped: more than $hr_spool_bytes bytes were waiting to be sent"
  [[ $(tail -c 1 "$stream.$((piece - 1))" 2>/dev/null; echo x) == $'\nx' ]] || text=$'\n'$text
  printf '%s\n' "$text" >"$stream.$piece"
  bytes=$((${#text} + 1)) dropped=0
  hr_keep
}

hr_read_stream() { # stream; each read becomes a piece, as long as there is room for it
  local stream=$1 room=$((hr_spool_bytes / 2)) piece=0 produced=0 acked=0 dropped=0 bulk=0 second=0 reads=0
  local bytes rc seen free
  exec 2>/dev/null <"$stream"
  while :; do
    read -r seen <"$stream.acked" && acked=$seen
    free=$((room - produced + acked))
    # Once full, it drops until half is free again: a few large gaps, not many small ones.
    if ((free < (dropped ? room / 2 : hr_read))); then
      hr_copy /dev/null
      dropped=$((dropped + bytes))
    else
      ((dropped)) && hr_mark_dropped
      ((free < hr_chunk)) && bulk=0
      hr_copy "$stream.$piece"
      ((bytes)) && hr_keep
    fi
    if ((rc == 0 && bytes == 0)); then
      ((dropped)) && hr_mark_dropped
      echo "eof $stream" >&8
      return
    fi
    if ((rc != 0 && rc != 124)); then
      # The disk is full: what a failed write held is lost, at most one read. There is room for no more than this.
      room=$((produced - acked)) dropped=$((dropped + hr_read))
      hr_pause 200
    fi
    bulk=$((bytes >= hr_read))
    # Many small writes: let the pipe gather some, instead of starting a process for each of them.
    if ((bulk)) || ((SECONDS != second)); then
      second=$SECONDS reads=0
    elif ((++reads > 10)); then
      hr_pause 100
    fi
  done
}
