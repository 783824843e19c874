"""A real Slurm cluster of emulated nodes on this machine, for the length of a test module."""

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

CONF = """ClusterName=thalweg
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
ReturnToService=2
SlurmctldPort={port}
SlurmctldPidFile={state}/slurmctld.pid
SlurmdPidFile={state}/slurmd-%n.pid
SlurmdSpoolDir={state}/d-%n
StateSaveLocation={state}/ctld
SlurmctldLogFile={state}/log/slurmctld.log
SlurmdLogFile={state}/log/slurmd-%n.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
MaxArraySize=10001
KillWait=2
MinJobAge=600
SlurmdTimeout=10
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=100000
NodeName=n[0-{last}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{end}] CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=debug Nodes=n[0-{last}] Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def missing():
    """Say why a cluster cannot be started here; None where it can."""
    absent = [name for name in ("slurmctld", "slurmd", "sbatch", "munged", "setpriv") if not shutil.which(name)]
    if absent:
        return f"{', '.join(absent)} not installed (Debian: slurmctld slurmd slurm-client munge)"
    return None if os.geteuid() == 0 else "a Slurm cluster is started as root only"


def free_ports(n):
    """Find n consecutive free ports."""
    for first in range(26000 + os.getpid() % 3000, 60000, n):
        try:
            for port in range(first, first + n):
                with socket.socket() as s:
                    s.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


class Cluster:
    """slurmctld and one slurmd a node."""

    def __init__(self, state: Path, nodes: int):
        self.state, self.nodes = state, nodes
        for name in ("ctld", "log", *(f"d-n{k}" for k in range(nodes))):
            (state / name).mkdir(parents=True)
        port = free_ports(nodes + 1)
        host = socket.gethostname().partition(".")[0]
        self.conf = state / "slurm.conf"
        text = CONF.format(host=host, state=state, port=port, first=port + 1, end=port + nodes, last=nodes - 1)
        self.conf.write_text(text)
        os.environ["SLURM_CONF"] = str(self.conf)

    def start(self):
        if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode:
            Path("/run/munge").mkdir(exist_ok=True)
            shutil.chown("/run/munge", "munge", "munge")
            command = ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", shutil.which("munged")]
            subprocess.run(command, check=True, capture_output=True)
        self.wait(lambda: not subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode, "munge")
        subprocess.run(["slurmctld", "-f", str(self.conf)], check=True, capture_output=True)
        for k in range(self.nodes):
            self.start_node(k)
        self.wait(lambda: self.ask("sinfo", "-h", "-N", "-o", "%T").count("idle") == self.nodes, "nodes")

    def start_node(self, k):
        subprocess.run(["slurmd", "-N", f"n{k}", "-f", str(self.conf)], check=True, capture_output=True)

    def kill_node(self, name):
        os.kill(int((self.state / f"slurmd-{name}.pid").read_text()), signal.SIGKILL)

    @staticmethod
    def ask(*command):
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def jobs(self):
        """State of every job and array element that the cluster remembers: id -> state."""
        shown = self.ask("squeue", "-h", "-r", "-t", "all", "-o", "%i %T")
        return dict(line.split() for line in shown.splitlines())

    def wait_for_jobs(self, seconds=240):
        over = {"COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT", "DEADLINE"}
        self.wait(lambda: set(self.jobs().values()) <= over, "jobs", seconds)
        return self.jobs()

    def wait(self, ready, what, seconds=60):
        end = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > end:
                raise AssertionError(f"waited {seconds} s for {what}: {self.jobs()}")
            time.sleep(0.2)

    def stop(self):
        self.ask("scancel", "--user=root")
        for path in [*self.state.glob("slurmd-*.pid"), self.state / "slurmctld.pid"]:
            with suppress(OSError, ValueError):
                os.kill(int(path.read_text()), signal.SIGTERM)
