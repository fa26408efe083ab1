"""The network of workloads on a host, as text for bash: a bridge of their own, with packet rules around it.

Out to the world and to the host's resolver; never into the host, into private networks (the fleet's among them), to
cloud metadata, or by IPv6. By the bridge and not by a range of addresses, which is the engine's to choose. In the table
`mangle`, before everything that engines and firewall managers write: whatever comes first in `filter` accepts nothing
that was dropped here. Replies pass, so published ports serve everybody. What workloads have in common is the bridge:
each one's port of it is set apart from the others'.
"""

from collections.abc import Sequence
from shlex import quote
from typing import NamedTuple

from domain.networks import PRIVATE

NETWORK = "headrace-fleet"
_BRIDGE = "headrace0"
_RENEW_SECONDS = 60
"""A firewall manager's reload drops what it did not write; the rules are laid again at most so much later."""


def ensure(allowed: Sequence[str]) -> str:
    """Defines `ensure_wall ENGINE`, which prints `network NAME BRIDGE` when the network and its rules are there, else
    `open REASON`. `allowed` are private networks (CIDRs) that workloads reach all the same."""
    passes = "".join(f"-A HEADRACE-OUT -d {network} -j RETURN\\n" for network in allowed)
    drops = "".join(f"-A HEADRACE-OUT -d {network} -j DROP\\n" for network in PRIVATE)
    return rf"""
ensure_wall() {{
  local engine=$1 network={NETWORK} stamp=/run/headrace-wall-$1 rules={quote(passes + drops)} answer
  if [ -n "$(find "$stamp" -newermt '-{_RENEW_SECONDS} seconds' 2>/dev/null)" ] &&
    read -r answer <"$stamp" && [ "$(tail -n +2 "$stamp")" = "$rules" ]; then echo "$answer"; return; fi
  exec 7>/run/headrace-wall.lock
  flock -w 30 7
  if answer=$(lay_wall 2>&1 7>&-); then answer=${{answer##*$'\n'}}; else answer="open ${{answer##*$'\n'}}"; fi
  exec 7>&-
  printf '%s\n%s' "$answer" "$rules" >"$stamp.$$" && mv "$stamp.$$" "$stamp"
  echo "$answer"
}}

lay_wall() {{
  local bridge form server
  for program in iptables iptables-restore; do
    command -v $program >/dev/null || {{ echo "$program is not installed"; return 1; }}
  done
  # Asked of the engine, so that no rule is laid around a bridge that is not there.
  form='{{{{.NetworkInterface}}}}'
  [ $engine = podman ] || form='{{{{index .Options "com.docker.network.bridge.name"}}}}'
  if ! bridge=$(timeout 30 $engine network inspect --format "$form" $network 2>/dev/null); then
    case $engine in
      docker)
        timeout 30 docker network create --opt com.docker.network.bridge.name={_BRIDGE} \
          --opt com.docker.network.bridge.enable_icc=false $network >/dev/null ;;
      *) timeout 30 podman network create --disable-dns $network >/dev/null ;;
    esac || return 1
    bridge=$(timeout 30 $engine network inspect --format "$form" $network) || return 1
  fi
  case $bridge in '' | *[!A-Za-z0-9._-]*) echo "$engine names no bridge of $network"; return 1 ;; esac
  {{
    printf '*mangle\n:HEADRACE-IN - [0:0]\n:HEADRACE-OUT - [0:0]\n'
    for chain in HEADRACE-IN HEADRACE-OUT; do
      echo "-A $chain -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN"
      cat /etc/resolv.conf /run/systemd/resolve/resolv.conf 2>/dev/null |
        sed -n 's/^nameserver *\([0-9.]*\) *$/\1/p' | sort -u | while read -r server; do
          printf -- "-A $chain -d $server/32 -p %s --dport 53 -j RETURN\n" udp tcp
        done
    done
    echo '-A HEADRACE-IN -j DROP'
    printf -- "${{rules}}"
    ip -4 route show scope link 2>/dev/null | sed -n 's/^\([0-9.]*\/[0-9]*\) .*/-A HEADRACE-OUT -d \1 -j DROP/p'
    echo COMMIT
  }} | iptables-restore --noflush --wait=5 || return 1
  jump iptables INPUT "$bridge" HEADRACE-IN && jump iptables FORWARD "$bridge" HEADRACE-OUT || return 1
  if [ -e /proc/net/if_inet6 ]; then
    jump ip6tables INPUT "$bridge" DROP && jump ip6tables FORWARD "$bridge" DROP || return 1
  fi
  echo "network $network $bridge"
}}

jump() {{
  $1 --wait 5 --table mangle --check $2 --in-interface "$3" --jump $4 2>/dev/null ||
    $1 --wait 5 --table mangle --insert $2 --in-interface "$3" --jump $4
}}
"""


class Wall(NamedTuple):
    """What `ensure_wall` answered."""

    network: str = ""
    """Which workloads join; empty: the engine's own."""
    bridge: str = ""
    problem: str = ""
    """Why there are no rules."""


def read(output: str) -> Wall:
    """By the last line of what was printed."""
    line = output.rstrip().rpartition("\n")[2]
    words = line.split(" ")
    if words[0] == "network" and len(words) == 3:
        return Wall(words[1], words[2])
    return Wall(problem=line.removeprefix("open "))


def part(bridge: str) -> str:
    """Workloads on the bridge do not reach each other, from now on: an isolated port leads to the host alone."""
    return f"""
ip -o link show master {quote(bridge)} 2>/dev/null | sed 's/^[0-9]*: \\([^:@]*\\).*/\\1/' | while read -r port; do
  bridge link set dev "$port" isolated on 2>/dev/null
done
"""
