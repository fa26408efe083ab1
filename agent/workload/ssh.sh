# --- SSH --------------------------------------------------------------------------------------------------------------

hr_open_ssh() { # best effort: an image without sshd, or with one that will not start, runs all the same
  exec </dev/null >/dev/null 2>&1 8>&-
  local home=~root key=$hr_dir/host_key public= sshd
  mkdir -p "$home/.ssh"
  chmod 700 "$home/.ssh"
  printf '%s\n' "$hr_ssh_key" >"$home/.ssh/authorized_keys"
  chmod 600 "$home/.ssh/authorized_keys"
  PATH=$PATH:/usr/sbin:/sbin
  mkdir -p -m 755 /run/sshd
  # Its host key is made here: whoever has the image has those that are in it. Nobody gets in but by the user's key.
  if sshd=$(command -v sshd) && ssh-keygen -q -t ed25519 -N '' -C '' -f "$key" &&
    "$sshd" -h "$key" -p 22 -o PermitRootLogin=prohibit-password -o PubkeyAuthentication=yes -o UsePAM=no \
      -o PasswordAuthentication=no -o KbdInteractiveAuthentication=no -o AuthorizedKeysFile=.ssh/authorized_keys 9>&-
  then
    read -r public <"$key.pub"
  fi
  hr_delay=100
  while hr_post_from_memory ssh "$public"; [[ $hr_code != [24]?? ]]; do
    hr_back_off $hr_delay
    hr_longer $hr_delay
  done
}
