r"""What does it cost on a CPU, at 48×96? A guided evaluation, its parts, and how they grow.

    python benchmarks/small.py [--only SECTION ...] [--limit 60] [--output FILE]

The questions of `full_size.py`, for the preset `planet` and the network of the paper's density, in
single precision: parts, guided (1, 2 and 4 members), inside, observations (10² to 10⁶, and fewer
hours that have any), lengths, and reanalyses of two steps by the trained model `planet`. All but
the last have fresh weights. Nothing is compiled. The limit is of a section; the last three have
several times as long, so that their last rows come out on a slow machine.
"""

from __future__ import annotations

import torch
from bench import Bench
from common import Report, arguments_of, machine
from evaluations import guided, lengths, observed, reanalysis
from passes import inside, parts, speed


def main() -> None:
    parser = arguments_of(__doc__, __file__)
    parser.set_defaults(limit=60.0, rounds=1)
    parser.add_argument("--members", type=int, nargs="*", default=[1, 2, 4])
    arguments = parser.parse_args()
    device = torch.device("cpu")
    bench = Bench("planet", device, "float32", arguments.rounds)
    head = {
        "preset": "planet",
        "machine": machine(device),
        "torch": torch.__version__,
        "TFLOP/s": round(bench.rate / 1e12, 4),
        "floor of an evaluation": round(bench.floor(bench.config.window), 4),
    }
    report = Report(arguments.output, head, arguments)
    report.section("speed", speed(bench))
    report.section("guided", *guided(bench, arguments.members))
    report.section("inside", inside(bench))
    report.section("parts", parts(bench, compiled=False))
    counts = [10**k for k in range(2, 7)]
    report.section("observations", observed(bench, counts, (1, 6, 12)), times=3)
    report.section("lengths", lengths(bench, (24, 36, 48)), times=3)
    short = {"steps": 2, "iterations": 2, "tolerance": 0.0}
    cases = [(24, 1, short), (24, 2, short), (48, 1, short), (72, 1, short)]
    report.section("reanalysis", reanalysis(device, cases), times=8)


if __name__ == "__main__":
    main()
