"""Measures Caravan and its peers in turn, and lays the figures side by side. Started by ci/suites/peers, which builds them all.

Every round runs every program once, so that whatever the machine does meets all of them. A figure is the median of its rounds;
a ratio is taken within a round, and of those the median, so that it always says how many times better Caravan is.
"""

import argparse
import csv
import ctypes
import datetime
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time

FOLDER = "target/peers"
CARAVAN = "target/release/caravan"
RECORD = "bench/records/peers.jsonl"
TIMEOUT_S = 45

SMALL = (8, 1 << 10, 4 << 10)
LARGE = (64 << 10, 1 << 20, 4 << 20)
STREAM = (1 << 20, 4 << 20)
SPARSE = (1_000, 100_000)
VANS = ("auto", "uring", "tcp", "shm")
BOTH = ("push", "pull")
OPS = (*BOTH, "pull-lent")  # of which a peer makes plain pulls
ONE_CORE = ", one core"
PEERS = ("ps-lite", "zeromq", "openmpi", "ucx", "libfabric", "redis", "grpc")
WIDE = 256  # requests in flight beside a peer that has none answered: all that a lane's credits allow

# ---- what is compared, and the least that each ratio is to be -------------------------------------------------------------------
#
# bandwidth: pushes that the server stores, and pulls into memory of the worker's choice; nobody reads what was pulled.
# bandwidth-read: pulls of which the worker reads every value as soon as it is there. Caravan's are lent (Worker::pull, its plain
# pull): they stay where the server has them. The peer's stand where it put them.
# rate, rate-wide: small messages, a window of 64, or of all that a lane's credits allow.


def comparisons():
    """Yields ours, peer, measure, what the peer calls it, op, keys, bytes and the limit, which may be None.

    A peer that sleeps is also run on one core, where it need not wake another: it is to be beaten there as well, by no set measure.
    """

    def rows(ours, peer, measure, sizes, limit, ops=BOTH, keys=1, peers=None):
        return [(ours, peer, measure, peers or measure, op, keys, size, limit) for op in ops for size in sizes]

    def against_ps_lite(ours, peer, least):
        yield from rows(ours, peer, "latency", LARGE, None)
        yield from rows(ours, peer, "bandwidth", STREAM, least["bandwidth"])
        if ours == "auto":
            yield from rows(ours, peer, "bandwidth-read", STREAM, least["bandwidth"], ["pull-lent"])
        for peer, least in ((peer, least), (peer + ONE_CORE, dict.fromkeys(least, 1))):
            yield from rows(ours, peer, "latency", SMALL, least["latency"])
            yield from rows(ours, peer, "rate", [64], least["rate"])
            for keys in SPARSE:
                limit = least["sparse"] if keys == 100_000 else None
                for measure in ("latency", "latency-map"):
                    yield from rows(ours, peer, "latency", [4 * keys], limit, keys=keys, peers=measure)

    same_host = {"latency": 10, "bandwidth": 3, "rate": None, "sparse": None}
    yield from against_ps_lite("auto", "ps-lite ipc", same_host)
    yield from against_ps_lite("auto", "ps-lite tcp", same_host)
    yield from against_ps_lite("uring", "ps-lite tcp", {"latency": 3, "bandwidth": None, "rate": 20, "sparse": 2})
    for ours, peer in (("auto", "zeromq ipc"), ("uring", "zeromq tcp")):
        yield from rows(ours, peer, "latency", LARGE, None)
        for peer, least in ((peer, 4), (peer + ONE_CORE, 1)):
            yield from rows(ours, peer, "latency", SMALL, least)
            yield from rows(ours, peer, "rate-wide", [64], 1, ["push"], peers="rate")
    for ours in ("tcp", "uring"):
        yield from rows(ours, "openmpi tcp", "latency", SMALL + LARGE, 1)
        yield from rows(ours, "openmpi tcp", "bandwidth", STREAM, 1)
    spinning = "shm, spinning"
    yield from rows(spinning, "openmpi shm", "latency", SMALL, 1, ["push"])
    yield from rows(spinning, "openmpi shm", "latency", SMALL, None, ["pull"])
    yield from rows(spinning, "openmpi shm", "latency", LARGE, None)
    yield from rows(spinning, "its floor", "latency", SMALL[:1], round(1 / 1.5, 3), ["push"])
    yield from rows("shm", "openmpi shm", "bandwidth", STREAM[:1], 1, ["pull"])
    yield from rows("shm", "openmpi shm", "bandwidth", STREAM, None, ["push"])
    yield from rows("shm", "memcpy", "bandwidth", STREAM[:1], 0.8, ["pull"])
    # These have no limits: they carry bytes and apply nothing, or do more than apply.
    for ours, peer in (("uring", "ucx tcp"), (spinning, "ucx shm")):
        yield from rows(ours, peer, "latency", SMALL + LARGE, None)
        yield from rows(ours, peer, "bandwidth", STREAM, None, ["push"])
    yield from rows("uring", "libfabric tcp", "latency", SMALL + LARGE, None)
    yield from rows("uring", "redis tcp", "latency", SMALL + LARGE, None)
    yield from rows("uring", "redis tcp", "rate", [64], None)
    yield from rows("uring", "grpc tcp", "latency", SMALL + LARGE, None)
    yield from rows("uring", "grpc tcp", "bandwidth", STREAM, None)
    yield from rows("uring", "grpc tcp", "rate", [64], None)


# ---- who is measured: each returns {(measure, op, keys, bytes): figure}, and counts wrong answers under "wrong" -----------------


class Failed(Exception):
    """A program that could not be measured, with what it said."""


class Missing(Failed):
    """A program that is not installed. Peers of Debian that `ci/suites/peers` does not install itself are left out without it."""


def caravan(name, selected):
    """Caravan over a van, as `shm, spinning` or with its own way to wait; what is compared of it, and its floor's latencies."""
    van, _, spinning = name.partition(", ")
    options = ["--van", van, "--json"] + (["--wait", "spin"] if spinning else [])
    benches = {}  # by command, which ops of which sizes are asked of it
    for ours, _, measure, _, op, keys, size, _ in selected:
        if ours == name:
            ops, sizes = benches.setdefault((measure, keys, ITERATIONS[measure](size)), ({}, {}))
            ops[op] = sizes[size] = True  # dicts keep their order
    columns = {"latency": "p50_us", "bandwidth": "gb_per_s", "rate": "mmsg_per_s"}

    def measure():
        figures = {"wrong": 0}
        for (measure, keys, iterations), (ops, sizes) in benches.items():
            bench, _, how = measure.partition("-")
            command = [CARAVAN, "bench", bench, "--op", ",".join(ops), "--sizes", ",".join(map(str, sizes))]
            command += ["--iterations", str(iterations)]
            command += ["--keys", str(keys)] if keys > 1 else []
            command += ["--window", str(WIDE)] if how == "wide" else []
            for row in map(json.loads, run(command + options).splitlines()):
                if row["row"] == bench:
                    figures[measure, row["op"], keys, row["bytes"]] = row[columns[bench]]
                    figures["wrong"] += row["wrong"]
                    if bench == "latency":
                        figures["floor", row["op"], keys, row["bytes"]] = row["floor_p50_us"]
        return figures

    return measure


# Requests of Caravan by their size. Its streams run in twenty batches, and each is to be many windows long.
ITERATIONS = {
    "latency": lambda size: 4000 if size <= SMALL[-1] else 200,
    "bandwidth": lambda size: 1600 if size <= 1 << 20 else 640,
    "bandwidth-read": lambda size: 1600 if size <= 1 << 20 else 640,
    "rate": lambda size: 64_000,
    "rate-wide": lambda size: 200_000,
}


def ps_lite(name, selected):
    """A scheduler, a server and a worker, each where the system puts it, as by its own scripts; or all on one core."""
    local, one_core = "ipc" in name, name.endswith(ONE_CORE)

    def part_of(row):
        _, _, _, measure, _, keys, size, _ = row
        if not measure.startswith("latency"):
            return measure.partition("-")[0]
        return "sparse" if keys > 1 else "small" if size <= SMALL[-1] else "large"

    asked = dict.fromkeys(part_of(row) for row in selected if row[1] == name)

    def measure():
        port = free_port()
        common = {
            "DMLC_NUM_WORKER": "1",
            "DMLC_NUM_SERVER": "1",
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(port),
            "DMLC_NODE_HOST": "127.0.0.1",
        }
        if local:
            common["DMLC_LOCAL"] = "1"
        ports = {"scheduler": port, "server": free_port(), "worker": free_port()}
        nodes = {}
        try:
            for role, own in ports.items():
                environment = {**os.environ, **common, "DMLC_ROLE": role, "PORT": str(own)}
                command = [f"{FOLDER}/ps-lite", *asked]
                nodes[role] = start(["taskset", "-c", "1", *command] if one_core else command, environment)
            output = finish(nodes["worker"], "ps-lite's worker")
            for role in ("server", "scheduler"):
                finish(nodes[role], f"ps-lite's {role}")
        finally:
            for node in nodes.values():
                end(node)
            for own in ports.values():  # it leaves its sockets behind
                if local and os.path.exists(f"/tmp/{own}"):
                    os.unlink(f"/tmp/{own}")
        return parse(output)

    return measure


def zeromq(ipc, one_core=False):
    """One process on each of two cores, as Caravan's two sides; or both on one."""

    def measure():
        names = [f"{FOLDER}/{name}.socket" for name in ("answers", "pushes")]
        ends = [f"ipc://{name}" if ipc else f"tcp://127.0.0.1:{free_port()}" for name in names]
        return parse(run([f"{FOLDER}/zeromq", *ends, *("1", "1" if one_core else "0")]))

    return measure


def openmpi(transport):
    def measure():
        command = ["mpirun", "-np", "2", "--bind-to", "core", "--mca", "pml", "ob1", "--mca", "btl", f"self,{transport}"]
        command += ["--mca", "btl_tcp_if_include", "lo", f"{FOLDER}/openmpi"]
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
        return parse(run(command, {**os.environ, **root}))

    return measure


def there(program, package):
    if shutil.which(program) is None:
        raise Missing(f"{program} is not installed: apt-get install {package}")


def answered(server, client, port, environment=None):
    """What `client` prints beside `server`, once that listens. They have a core each, as Caravan's two sides."""
    serving = start(["taskset", "-c", "0", *server], environment)
    try:
        until = time.monotonic() + TIMEOUT_S
        while not listens(port):  # a look by connecting would be taken for the client
            if serving.poll() is not None or time.monotonic() > until:
                raise Failed(f"{server[0]} does not listen")
            time.sleep(0.01)
        return run(["taskset", "-c", "1", *client], environment)
    finally:
        end(serving)


def listens(port):
    """Whether somebody listens at a port of TCP."""
    lines = []
    for table in ("tcp", "tcp6"):
        if os.path.exists(f"/proc/net/{table}"):
            with open(f"/proc/net/{table}", encoding="ascii") as table:
                lines += table.readlines()[1:]
    sockets = (line.split()[1:4] for line in lines)
    return any(address.endswith(f":{int(port):04X}") and state == "0A" for address, _, state in sockets)


def both_ways(one_way):
    """Latencies as Caravan counts them, of times one way by size: the bytes go there and 8 come back, or the other way round."""
    return {("latency", op, 1, size): us + one_way[SMALL[0]] for size, us in one_way.items() for op in BOTH}


def ucx(transport):
    """ucx_perftest with tags, which matches and moves, and stores nothing."""

    def measure():
        there("ucx_perftest", "ucx-utils")
        environment = {**os.environ, "UCX_TLS": f"{transport},self"}

        def last(test, size, count, *more):
            port = str(free_port())
            server = ["ucx_perftest", "-p", port]
            client = ["ucx_perftest", "127.0.0.1", "-p", port, "-t", test, "-s", str(size), "-n", str(count), "-f", *more]
            return [float(column) for column in answered(server, client, port, environment).splitlines()[-1].split()]

        # Columns: count, median, mean and overall time, mean and overall MiB/s, mean and overall messages a second.
        one_way = {size: last("tag_lat", size, ITERATIONS["latency"](size))[1] for size in SMALL + LARGE}
        streams = {size: last("tag_bw", size, 400, "-O", "16")[5] * (1 << 20) / 1e9 for size in STREAM}
        return {**both_ways(one_way), **{("bandwidth", "push", 1, size): rate for size, rate in streams.items()}, "wrong": 0}

    return measure


def libfabric():
    """fi_pingpong over libfabric's own sockets; it prints means, where others have medians."""

    def measure():
        there("fi_pingpong", "libfabric-bin")

        def one_way(size):
            port = str(free_port())
            server = ["fi_pingpong", "-p", "tcp", "-e", "msg", "-B", port, "-S", str(size), "-I", str(ITERATIONS["latency"](size))]
            client = ["-P" if word == "-B" else word for word in server] + ["127.0.0.1"]
            return float(answered(server, client, port).splitlines()[-1].split()[-2])

        return {**both_ways({size: one_way(size) for size in SMALL + LARGE}), "wrong": 0}

    return measure


def redis():
    """A server on one thread that stores a value by SET and answers it by GET, with its own benchmark."""

    def measure():
        there("redis-server", "redis-server")

        def lines(size, count, window):
            port = str(free_port())
            server = ["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
            client = ["redis-benchmark", "-p", port, "-c", "1", "-P", str(window), "-n", str(count), "-d", str(size), "-t", "set,get", "--csv"]
            _, *lines = csv.reader(answered(server, client, port).splitlines())
            return zip(BOTH, lines)

        # Columns: name, requests a second, then mean, least and median latency in milliseconds.
        figures = {"wrong": 0}
        for size in SMALL + LARGE:
            for op, line in lines(size, ITERATIONS["latency"](size), 1):
                figures["latency", op, 1, size] = float(line[4]) * 1e3
        for op, line in lines(64, ITERATIONS["rate"](64), 64):
            figures["rate", op, 1, 64] = float(line[1]) / 1e6
        return figures

    return measure


def grpc():
    """Unary calls of raw bytes, one process on each of two cores."""

    def measure():
        if not os.path.exists(f"{FOLDER}/grpc"):
            raise Missing("grpc++ is not installed: apt-get install libgrpc++-dev")
        return parse(run([f"{FOLDER}/grpc", f"127.0.0.1:{free_port()}", "1", "0"]))

    return measure


def memcpy():
    """A window of megabytes, each copied to memory of its own, as a pull of them would."""
    size, window = STREAM[0], 16
    sources, targets = ([ctypes.create_string_buffer(bytes([fill]) * size) for _ in range(window)] for fill in (1, 2))
    for timed in (False, True):
        began = time.perf_counter()
        for _ in range(20):
            for source, target in zip(sources, targets):
                ctypes.memmove(target, source, size)
        took = time.perf_counter() - began
    wrong = sum(source.raw != target.raw for source, target in zip(sources, targets))
    return {("bandwidth", "pull", 1, size): 20 * window * size / took / 1e9, "wrong": wrong}


def subjects(selected):
    """Whoever has a part in the selected comparisons, by name, in the order in which they are measured."""
    peers = {
        **{name: ps_lite(name, selected) for _, name, *_ in selected if name.startswith("ps-lite")},
        "zeromq tcp": zeromq(ipc=False),
        "zeromq ipc": zeromq(ipc=True),
        "zeromq tcp" + ONE_CORE: zeromq(ipc=False, one_core=True),
        "zeromq ipc" + ONE_CORE: zeromq(ipc=True, one_core=True),
        "openmpi tcp": openmpi("tcp"),
        "openmpi shm": openmpi("vader"),
        "memcpy": memcpy,
        "ucx tcp": ucx("tcp"),
        "ucx shm": ucx("posix"),
        "libfabric tcp": libfabric(),
        "redis tcp": redis(),
        "grpc tcp": grpc(),
    }
    names = dict.fromkeys(name for ours, peer, *_ in selected for name in (peer, ours) if name != "its floor")
    return {name: peers.get(name) or caravan(name, selected) for name in names}


# ---- processes ------------------------------------------------------------------------------------------------------------------


def start(command, environment=None):
    """Starts a program in a session of its own, so that it can be ended with its children."""
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def finish(process, name):
    """What it printed; `Failed` if that took too long or it did not end well."""
    try:
        output, errors = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise Failed(f"{name} did not end within {TIMEOUT_S} s") from None
    if process.returncode != 0:
        said = [line for line in errors.splitlines() if line.strip()]
        raise Failed(f"{name}: status {process.returncode}: {said[-1] if said else 'no word'}")
    return output


def end(process):
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def run(command, environment=None):
    process = start(command, environment)
    try:
        return finish(process, " ".join(command[:2]) if command[0] == CARAVAN else os.path.basename(command[0]))
    finally:
        end(process)


def parse(output):
    """The lines of measure.h."""
    figures = {"wrong": 0}
    for line in output.splitlines():
        measure, op, size, keys, figure, wrong = line.split()
        figures[measure, op, int(keys), int(size)] = float(figure)
        figures["wrong"] += int(wrong)
    return figures


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


# ---- rounds, and the table ------------------------------------------------------------------------------------------------------


def measure_all(subjects, rounds):
    """{name: [figures of each round, or None]}; a van that fails in the first round is left out from then on."""
    measured = {name: [] for name in subjects}
    failures = []
    for at in range(rounds):
        for name in list(measured):
            if sys.stderr.isatty():
                sys.stderr.write(f"\rci/suites/peers: round {at + 1} of {rounds}: {name:20}")
            try:
                measured[name].append(subjects[name]())
            except Failed as failure:
                failures.append(f"round {at + 1}: {name}: {failure}")
                measured[name].append(None)
                if isinstance(failure, Missing) or (at == 0 and name.split(",")[0] in VANS):
                    failures[-1] = f"SKIPPED all of {name}: {failure}"
                    del measured[name]
    if sys.stderr.isatty():
        sys.stderr.write("\r" + " " * 60 + "\r")
    return measured, failures


def compare(measured, selected):
    """A row for each comparison that both sides have figures for, by pair."""
    pairs = list(dict.fromkeys(row[:2] for row in selected))
    measures = list(dict.fromkeys(row[2] for row in selected))

    def order(row):
        _, _, measure, peers_measure, op, keys, size, _ = row
        return pairs.index(row[:2]), measures.index(measure), keys, peers_measure, OPS.index(op), size

    for ours, peer, measure, peers_measure, op, keys, size, limit in sorted(selected, key=order):
        key, peers_key = (measure, op, keys, size), (peers_measure, op.partition("-")[0], keys, size)
        mine, theirs = measured.get(ours, []), measured.get(peer, [])
        if peer == "its floor":
            theirs, peers_key = mine, ("floor", op, keys, size)
        rounds = [(a[key], b[peers_key]) for a, b in zip(mine, theirs) if a and b and key in a and peers_key in b]
        if not rounds:
            continue
        ratios = [theirs / mine if measure == "latency" else mine / theirs for mine, theirs in rounds]
        ratio = statistics.median(ratios)
        yield {
            "row": "peer",
            "measure": measure,
            "op": op,
            "keys": keys,
            "bytes": size,
            "caravan": ours,
            "figure": round(statistics.median(a for a, _ in rounds), 3),
            "peer": peer + (", hash map" if peers_measure == "latency-map" else ""),
            "peer_figure": round(statistics.median(b for _, b in rounds), 3),
            "ratio": round(ratio, 3),
            "ratio_min": round(min(ratios), 3),
            "ratio_max": round(max(ratios), 3),
            "limit": limit,
            "holds": None if limit is None else ratio >= limit,
            "rounds": len(rounds),
        }


def table(rows):
    units = {"latency": "us", "bandwidth": "GB/s", "rate": "Mmsg/s"}
    form = "{:<14} {:<9} {:>14}  {:<13} {:>9}  {:<31} {:>9} {:<6}  {:>7} {:>15}  {:>5}  {}"
    print(form.format("", "", "", "caravan", "", "peer", "", "", "ratio", "(of rounds)", "limit", ""))
    for row in rows:
        shape = f"{row['keys']:,} keys" if row["keys"] > 1 else size_name(row["bytes"])
        spread = f"({row['ratio_min']:.2f}-{row['ratio_max']:.2f})"
        limit = "" if row["limit"] is None else f"{row['limit']:g}"
        verdict = {None: "", True: "holds", False: "DOES NOT HOLD"}[row["holds"]]
        figures = (f"{row['figure']:.2f}", row["peer"], f"{row['peer_figure']:.2f}", units[row["measure"].partition("-")[0]])
        print(form.format(row["measure"], row["op"], shape, row["caravan"], *figures, f"{row['ratio']:.2f}", spread, limit, verdict))


def size_name(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def machine():
    """Caravan's own row of this machine, as far as it matters here, with the peers' versions."""
    row = json.loads(run([CARAVAN, "bench", "latency", "--van", "tcp", "--smoke", "--json"]).splitlines()[0])
    del row["nic"]  # all of it is within one host
    row["kernel"] = ".".join(row["kernel"].split(".")[:2])
    row["date"] = datetime.date.today().isoformat()
    commit = run(["git", "-C", f"{FOLDER}/source", "log", "-1", "--format=%h of %cs"]).strip()
    row["peers"] = {
        "ps-lite": f"github.com/dmlc/ps-lite {commit}",
        "zeromq": run(["pkg-config", "--modversion", "libzmq"]).strip(),
        "openmpi": run(["mpirun", "--version"]).split()[3],
    }
    for name, command in (("ucx", "ucx_info -v"), ("libfabric", "fi_info --version"), ("redis", "redis-server --version")):
        if shutil.which(command.split()[0]):
            row["peers"][name] = run(command.split()).splitlines()[0].strip("# ")
    if os.path.exists(f"{FOLDER}/grpc"):
        row["peers"]["grpc"] = run(["pkg-config", "--modversion", "grpc++"]).strip()
    return row


def record(rows, options):
    """Writes the record anew; what it has of that which was left out stays, with the commit it was measured at."""
    kept = []
    if os.path.exists(RECORD):
        with open(RECORD, encoding="utf-8") as lines:
            kept = [row for row in map(json.loads, lines) if row["row"] == "peer" and not wanted(row["peer"], row["measure"], options)]
    write(RECORD, [rows[0], *kept, *rows[1:]])


def write(path, rows):
    with open(path, "w", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)


def wanted(peer, measure, options):
    """Whether --only and --measure leave a comparison in."""
    only, measures = options.only, options.measure
    named = not only or peer.startswith(only) or (only == "openmpi" and peer in ("memcpy", "its floor"))
    return named and (not measures or measure.partition("-")[0] in measures)


def main():
    arguments = argparse.ArgumentParser(prog="ci/suites/peers")
    arguments.add_argument("--rounds", type=int, default=5, help="of every program in turn")
    arguments.add_argument("--only", choices=PEERS, help="leave the other peers out")
    arguments.add_argument("--measure", choices=["latency", "bandwidth", "rate"], action="append", help="leave the others out")
    arguments.add_argument("--record", action="store_true", help=f"write {RECORD}, or of it what --only and --measure leave in")
    options = arguments.parse_args()
    selected = [row for row in comparisons() if wanted(row[1], row[2], options)]
    measured, failures = measure_all(subjects(selected), options.rounds)
    rows = list(compare(measured, selected))
    here = machine()
    rows = [{**row, "commit": here["commit"]} for row in rows]
    write(f"{FOLDER}/peers.jsonl", [here, *rows])
    table(rows)
    for failure in failures:
        print(f"ci/suites/peers: {failure}")
    wrong = {name: sum(figures["wrong"] for figures in rounds if figures) for name, rounds in measured.items()}
    for name in (name for name in wrong if wrong[name]):
        print(f"ci/suites/peers: {name} gave {wrong[name]} wrong answers")
    held = [row["holds"] for row in rows if row["holds"] is not None]
    print(f"ci/suites/peers: {sum(held)} of {len(held)} limits hold, {options.rounds} rounds; rows are in {FOLDER}/peers.jsonl")
    if options.record and rows:
        record([here, *rows], options)
    lost = [failure for failure in failures if not failure.startswith("SKIPPED")]
    return 1 if lost or any(wrong.values()) or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
