"""Sums up a file of ci/profile/trace.cpp: what the time of one GPU went to.

With --begin and --end only what starts within so many milliseconds of the first record counts, or, if negative, of the last:
--begin -50 is the last 50 ms. With --around only what starts between the first and the last record whose name has that text.
"""
import argparse
import csv
import subprocess
from collections import defaultdict


def demangled(names):
    names = list(names)
    try:
        text = subprocess.run(["c++filt", "-p"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
        return dict(zip(names, text.splitlines()))
    except (OSError, subprocess.CalledProcessError):
        return {name: name for name in names}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--begin", type=float, default=0, metavar="MS")
    parser.add_argument("--end", type=float, default=float("inf"), metavar="MS")
    parser.add_argument("--around", metavar="TEXT")
    parser.add_argument("--rows", type=int, default=40)
    options = parser.parse_args()
    with open(options.file, newline="") as lines:
        # The last line may be cut off, if the program was killed.
        records = sorted(
            (int(row[2]), int(row[3]), ",".join(row[4:])) for row in csv.reader(lines)
            if len(row) >= 5 and int(row[0]) == options.device)
    if not records:
        raise SystemExit(f"{options.file} holds nothing of device {options.device}")
    first, last = records[0][0], max(end for _, end, _ in records)
    begin = (first if options.begin >= 0 else last) + options.begin * 1e6
    end = (first if options.end >= 0 else last) + options.end * 1e6
    records = [record for record in records if begin <= record[0] < end]
    if options.around and records:
        marks = [start for start, _, name in records if options.around in name]
        records = [record for record in records if marks and marks[0] <= record[0] <= marks[-1]]
    if not records:
        raise SystemExit("nothing starts within that time")

    counts, times = defaultdict(int), defaultdict(int)
    busy, until = 0, 0
    for start, stop, name in records:
        counts[name] += 1
        times[name] += stop - start
        busy += max(0, stop - max(start, until))
        until = max(until, stop)
    span = until - records[0][0]
    names = demangled(times)
    print(f"GPU {options.device}: {span / 1e6:.3f} ms, of which {busy / 1e6:.3f} ms busy ({busy / span:.1%}), {len(records)} records")
    print(f"{'ms':>10} {'share':>6} {'count':>7} {'mean us':>9}  name")
    for name in sorted(times, key=times.get, reverse=True)[:options.rows]:
        print(f"{times[name] / 1e6:10.3f} {times[name] / span:6.1%} {counts[name]:7} "
              f"{times[name] / counts[name] / 1e3:9.1f}  {names[name][:150]}")


if __name__ == "__main__":
    main()
