"""Processes on hosts of their own: network namespaces, one per host, on one switch, with links as slow as wanted.

    import hosts
    hosts.enter()                         # First thing: this script again, in namespaces that end with it.
    lan = hosts.Lan(4, rate="200mbit")    # 10.77.0.1 ... 10.77.0.4, each on its interface eth0.
    process = lan.start(2, ["program", "argument"], env={...})

Everything is made inside a private network, mount and process namespace without names, so that nothing can be left
behind: when the script ends, by itself or by any signal, the kernel ends its processes and takes the network away.
Needs Linux, iproute2, util-linux, and root or a kernel that gives users namespaces of their own.
"""

import os
import shutil
import signal
import subprocess
import sys

INTERFACE = "eth0"
PROGRAMS = {"unshare": "util-linux", "setpriv": "util-linux", "ip": "iproute2", "tc": "iproute2", "sysctl": "procps"}
_INSIDE = "DUALPIPE_TEST_HOSTS_INSIDE"
_NAMESPACES = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def _unshare():
    """As root without a user namespace, which some machines refuse; else with one, which makes this user its root."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, *_NAMESPACES]


def why_not():
    """Why this machine has no hosts for us, in one sentence; None where it has."""
    for program, package in PROGRAMS.items():
        if not shutil.which(program):
            return f"hosts of their own need the program `{program}`, which is not installed (package {package})"
    probe = ("mount -t tmpfs tmpfs /run && ip netns add a && ip -n a link add eth0 type veth peer name b && "
             "ip link add switch type bridge && tc -n a qdisc add dev eth0 root tbf rate 1mbit burst 16kb latency 1s")
    run = subprocess.run([*_unshare(), "sh", "-c", probe], capture_output=True, text=True)
    if run.returncode == 0:
        return None
    reason = " ".join(run.stderr.split()) or f"exit code {run.returncode}"
    return f"this machine does not allow network namespaces with throttled links ({reason}); run as root, or in a " \
           "container with CAP_SYS_ADMIN and CAP_NET_ADMIN"


def enter():
    """Runs this script again inside the namespaces and exits with its code. Inside it returns."""
    if os.environ.pop(_INSIDE, None):
        _prepare()
        return
    command = ["setpriv", "--pdeathsig", "KILL", *_unshare(), sys.executable, *sys.argv]
    # In a process group of its own: Ctrl-C reaches this process alone, whose end is that of all.
    child = subprocess.Popen(command, env={**os.environ, _INSIDE: "1"}, process_group=0)

    ended_by = []

    def end(number, _):
        ended_by.append(number)
        child.kill()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    code = child.wait()
    sys.exit(128 + ended_by[0] if ended_by else code)


def _run(command):
    subprocess.run(command.split(), check=True)


def _prepare():
    # `ip netns` keeps its names in /run/netns, of this mount namespace alone.
    _run("mount -t tmpfs tmpfs /run")
    _run("ip link set lo up")


class Lan:
    """`rate` as tc writes it ("200mbit") limits what each host sends; None leaves it unlimited."""

    def __init__(self, count, rate=None, prefix="10.77.0"):
        self.addresses = [f"{prefix}.{i + 1}" for i in range(count)]
        self._processes = []
        _run("ip link add switch type bridge")
        _run("ip link set switch up")
        for i, address in enumerate(self.addresses):
            self._plug_in(f"host{i}", f"port{i}", address, rate)

    @staticmethod
    def _plug_in(name, port, address, rate):
        _run(f"ip netns add {name}")
        _run(f"ip link add {port} mtu 9000 type veth peer name {INTERFACE} mtu 9000 netns {name}")
        _run(f"ip link set {port} master switch up")
        _run(f"ip -n {name} link set lo up")
        _run(f"ip -n {name} addr add {address}/24 dev {INTERFACE}")
        _run(f"ip -n {name} link set {INTERFACE} up")
        if rate:
            # Pieces that fit the bucket.
            _run(f"ip -n {name} link set {INTERFACE} gso_max_size 16000")
            # No slower after a pause than before it.
            _run(f"ip netns exec {name} sysctl -qw net.ipv4.tcp_slow_start_after_idle=0")
            # Always as fast as the link: BBR sends slower now and then to probe it.
            _run(f"ip netns exec {name} sysctl -qw net.ipv4.tcp_congestion_control=reno")
            # A small bucket: what a pause saves up would make the next message faster than the link.
            _run(f"tc -n {name} qdisc add dev {INTERFACE} root tbf rate {rate} burst 16kb latency 500ms")

    def start(self, host, command, env=None, **popen):
        """A Popen of `command` on a host; `env` is added to this process's."""
        process = subprocess.Popen(["ip", "netns", "exec", f"host{host}", *map(str, command)],
                                   env={**os.environ, **(env or {})}, **popen)
        self._processes.append(process)
        return process

    def end(self):
        """Ends what still runs and removes the network."""
        for process in self._processes:
            process.kill()
            process.wait()
        for i in range(len(self.addresses)):
            _run(f"ip link del port{i}")  # The kernel takes its time with what is left in a namespace.
            _run(f"ip netns del host{i}")
        _run("ip link del switch")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
