r"""What does it cost at 0.25°, on one GPU? A guided evaluation, its parts, and how they grow.

    python benchmarks/full_size.py [--only SECTION ...] [--seconds 300] [--output FILE]

The preset `era5-0.25deg` with fresh weights, which cost what trained ones do: a guided evaluation
(MMPS, two iterations of GMRES) of one window of 24 hours with 10,277 stations and one polar
orbiter, against the plain way in the same run, see `windows.py`. Sections:

- speed: what the device does at best;
- parts: networks forward and in training, a state or a window each, and kernels of attention;
- guided: an evaluation, plain and ours, for 1, 2, 4 and 8 members;
- inside: what an evaluation is made of;
- profile: the kernels it spends its time in;
- observations: 10³ to 10⁸ of them, and fewer hours that have any;
- lengths: trajectories of several windows;
- whole: reanalyses of 24 hours from the truth to a store on disk, a member each, by the settings
  `draft` and `paper`: observing, reading, compiling, drawing, decoding and writing;
- grids: the presets, from 48×96 to 721×1440;
- planet: the preset `planet` for many members;
- reanalysis: whole ones by the trained model `planet`.

Rows are on disk as they are found. A section or a row that is cut off by its limit, or one that
does not fit in memory, says so, and the rest goes on until the seconds of the whole run are over;
with `--only`, the file's other sections stay.
"""

from __future__ import annotations

import torch
from bench import Bench
from common import Report, arguments_of, machine
from evaluations import grids, guided, lengths, observed, reanalysis, whole
from passes import inside, parts, profile, speed

from appa.nn import fusing

GRIDS = ("planet", "planet-large", "era5-1.5deg", "era5-0.25deg")


def main() -> None:
    parser = arguments_of(__doc__, __file__)
    parser.add_argument("--precision", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--members", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--eager", action="store_true", help="measure nothing compiled")
    # other sizes, to see that all sections run
    parser.add_argument("--preset", default="era5-0.25deg", help="a configuration")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--steps", type=int, help="of reanalyses; of the planet's, with 2 iterations"
    )
    parser.add_argument("--most", type=float, default=1e8, help="observations")
    arguments = parser.parse_args()
    device, preset = torch.device(arguments.device), arguments.preset
    cuda, full = device.type == "cuda", preset == "era5-0.25deg"
    precision = arguments.precision or ("float16" if cuda else "float32")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True

    def bench(preset: str) -> Bench:
        stations = 10_277 if preset == "era5-0.25deg" else None
        return Bench(preset, device, precision, arguments.rounds, stations=stations)

    main = bench(preset)
    head = {
        "preset": preset,
        "machine": machine(device),
        "torch": torch.__version__,
        "precision": precision,
        "TFLOP/s": round(main.rate / 1e12, 3),
        "floor of an evaluation": round(main.floor(main.config.window), 4),
    }
    report = Report(arguments.output, head, arguments)
    compiled, fusing.FUSED = cuda and not arguments.eager, not arguments.eager
    counts = [10**k for k in range(3, 9) if 10**k <= arguments.most]
    report.section("speed", speed(main))
    report.section("guided", *guided(main, arguments.members))
    report.section("inside", inside(main))
    report.section("profile", profile(main))
    report.section("parts", parts(main, compiled), each=95.0, times=1.5)
    report.section("observations", observed(main, counts, (1, 6, 12)))
    report.section("lengths", lengths(main, (24, 36, 48, 72) if cuda else (24, 36)))
    vars(main).pop("world", None)  # its memory is wanted
    report.section("whole", whole(main, ("model", "draft", "paper"), arguments.steps), times=4)
    vars(main).pop("world", None)
    presets = GRIDS if full else (preset,)
    report.section("grids", grids([(name, lambda name=name: bench(name)) for name in presets]))
    planet = [1, 8, 32] if cuda else [1]
    report.section("planet", *guided(bench("planet"), planet))
    settings = {} if arguments.steps is None else {"steps": arguments.steps, "iterations": 2}
    cases = [(24, 1, settings), (24, 8, settings), (24, 32, settings), (72, 8, settings)]
    report.section("reanalysis", reanalysis(device, cases if cuda else cases[:1]))


if __name__ == "__main__":
    main()
