r"""Makes the tables and figures of `docs/results/prior.md` from folders of scores.

    recipes/planet.sh planet
    recipes/planet.sh planet-large
    python tools/prior_page.py planet=runs/planet/scores planet-large=runs/planet-large/scores

A folder has the scores of an autoencoder, of a prior, or of both; its folder `composed` those of
the prior's composed trajectories. Every number in a table of that page comes from here. A table
stands between the comments `begin NAME` and `end NAME`; the words around them are the page's own,
and stay. So does what a table has of models, networks and measures that were not scored anew. A
page that is not there yet begins as `tools/prior_page.md`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import xarray as xr
from pages import commanded, filled, number, table, updated

from appa.data.variables import VARIABLES
from appa.evaluation.files import load_scores, load_summary
from appa.evaluation.prior import PAPER
from appa.plots.draws import figures
from appa.plots.prior import save

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
MODELS = ROOT / "src" / "appa" / "models"
TEMPLATE = Path(__file__).with_suffix(".md")

# what each model is to reach, by its name; the least compression, then largest values
TARGETS = {
    "planet": {"compression": 60, "decoder": 1.5, "rmse": 0.11, "weather": 0.35, "size": 24.0},
    "planet-large": {"compression": 120, "rmse": 0.07, "weather": 0.25},
}
GAP, MEMORY, JOINT, SEAM = 0.10, 0.03, 0.05, 1.05
SHORT, LONG = (1, 6, 12, 23), (24, 36, 48)  # lags
COMPOSED = "composed"
WHOLE = ("composed", "joints", "others")  # tables that are made of the models given alone
WORDS = {COMPOSED: "composed", "sequential": "window after window"}

# of the first model; the others' are fewer
FIGURES = {
    "autoencoder": ("rmse", "errors"),
    "prior": ("spectra", "examples", "moments", "autocorrelation", "variance", "changes", "seam"),
}
FEWER = {"autoencoder": ("rmse",), "prior": ("spectra", "autocorrelation", "variance")}


class Model:
    r"""The scores of one model."""

    def __init__(self, name: str, folder: Path):
        self.name, self.folder = name, folder
        #: Empty where it was not scored.
        self.autoencoder: dict[str, Any] = {}
        if (folder / "autoencoder.json").exists():
            self.autoencoder = load_summary(folder, "autoencoder")
        self.prior: dict[str, Any] | None = None
        self.target: dict[str, float] = TARGETS.get(name, {})
        #: The summary of the longest draws, by how they were drawn, where that is beyond a window.
        self.longer: dict[str, dict[str, Any]] = {}
        if (folder / "prior.json").exists():
            self.prior = load_summary(folder, "prior")
        for part in (folder, folder / COMPOSED) if self.prior else ():
            if not (part / "prior.json").exists():
                continue
            summary = load_summary(part, "prior")
            longest = max(summary["lengths"], key=int)
            if int(longest) > summary["window"]:
                mode = WORDS[summary.get("mode", COMPOSED)]
                self.longer[f"{longest} h {mode}"] = summary["lengths"][longest]

    @property
    def reconstruction(self) -> xr.Dataset:
        return load_scores(self.folder, "autoencoder")

    @property
    def draws(self) -> xr.Dataset:
        return load_scores(self.folder, "prior")

    @property
    def window(self) -> dict[str, Any]:
        r"""The summary of draws of one window, or else of the shortest."""
        assert self.prior is not None
        lengths = self.prior["lengths"]
        return lengths.get(str(self.prior["window"])) or lengths[min(lengths, key=int)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the page")
    parser.add_argument("--no-figures", action="store_true", help="rewrite the tables alone")
    args = parser.parse_args()
    models = [
        Model(name, Path(folder)) for name, _, folder in (m.partition("=") for m in args.models)
    ]

    page = args.out / "prior.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    text = (page if page.exists() else TEMPLATE).read_text()
    tables: dict[str, Callable[[Sequence[Model]], str]] = {
        "models": weights,
        "commands": commands,
        "targets": targets,
        "reconstruction": reconstruction,
        "levels": levels,
        "spectra": spectra,
        "climate": climate,
        "memory": memory,
        "composed": composed,
        "joints": joints,
        "seam": seam,
        **({"others": others} if len(models) > 1 else {}),
    }
    for name, make in tables.items():
        join = {"commands": commanded} | dict.fromkeys(WHOLE, lambda old, new: new)
        text = filled(text, name, make(models), join.get(name, updated))
    page.write_text(text)

    for k, model in enumerate([] if args.no_figures else models):
        scored = {"autoencoder": model.reconstruction} if model.autoencoder else {}
        if model.prior:
            scored["prior"] = model.draws
        for kind, scores in scored.items():
            drawn = figures(scores)
            for name in (FEWER if k else FIGURES)[kind]:
                path = args.out / "figures" / figure_name(model, kind, name)
                print(f"{path.name}: {save(drawn[name], path) / 1e3:.0f} kB")


def figure_name(model: Model, kind: str, name: str) -> str:
    return f"{model.name}-{kind}-{name}.png"


def reached(good: bool) -> str:
    return "yes" if good else "**no**"


def weights(models: Sequence[Model]) -> str:
    r"""What the models weigh."""
    rows = []
    for model in models:
        if not model.autoencoder:
            continue
        about = model.autoencoder["model"]
        count = [f"{about[f'{k}_parameters'] / 1e6:.1f} M" for k in ("autoencoder", "denoiser")]
        cost = [f"{about[f'{k}_gflop']:.2f}" for k in ("encoder", "decoder", "denoiser")]
        if not model.prior:  # nor a denoiser
            count[-1] = cost[-1] = "·"
        cells = (*count, *cost)
        rows.append([model.name, f"{about['compression']:.0f}×", *cells])
    heads = ("model", "compression", "autoencoder", "denoiser")
    hours = next((m.autoencoder["model"]["window"] for m in models if m.autoencoder), None)
    return table((*heads, "encode, GFLOP", "decode", f"denoise {hours} h"), rows) if rows else ""


def commands(models: Sequence[Model]) -> str:
    r"""The commands that made the scores, with the recipe's names of files, and this page."""
    lines = []
    for model in models:
        run = f"runs/{model.name}"
        where = f"--climatology planet --out {run}/scores"
        scored = model.name if model.autoencoder.get("scored") == model.name else run
        if model.autoencoder:
            store = f"work/{Path(model.reconstruction.attrs['store']).name}"
            data = f"{scored} --data {store}"
            train = f" --train-data {store}" if "rmse_train" in model.autoencoder else ""
            states = f"--states {model.autoencoder['states']}"
            lines.append(f"    appa score autoencoder {data}{train} \\\n        {states} {where}")
        for part in ("", f"/{COMPOSED}"):
            if not (model.folder / part[1:] / "prior.json").exists():
                continue
            prior = load_summary(model.folder / part[1:], "prior")
            store = load_scores(model.folder / part[1:], "prior").attrs["store"]
            data = f"{scored} --data work/{Path(store).name}"
            hours = ",".join(sorted(prior["lengths"], key=int))
            how = f"--members {prior['members']} --hours {hours} --steps {prior['steps']}"
            how += f" --mode {prior.get('mode', COMPOSED)}"
            if prior.get("understated"):
                how += f" --understated {prior['understated']:g}"
            lines.append(f"    appa score prior {data} \\\n        {how} \\\n        {where}{part}")
    return "\n".join(lines) + "\n"


def targets(models: Sequence[Model]) -> str:
    rows = []
    for model in models:
        rows += [[f"**{model.name}**", "", "", ""], *(list(row) for row in judged(model))]
    return table(("what", "target", "found", "reached"), rows)


def judged(model: Model) -> list[tuple[str, str, str, str]]:
    r"""Each target, what was found, and whether that reaches it."""
    ae, target = model.autoencoder, model.target
    rows = []

    def most(what: str, found: float | None, bound: float, digits: int = 3, unit: str = "") -> None:
        good = found is not None and found <= bound
        rows.append((what, f"≤ {bound:g}{unit}", number(found, digits) + unit, reached(good)))

    if ae and "compression" in target:
        least, found = target["compression"], ae["model"]["compression"]
        rows.append(("compression", f"≥ {least}×", f"{found:.0f}×", reached(found >= least)))
    if ae and "decoder" in target:
        most("decoder, a state", ae["model"]["decoder_gflop"], target["decoder"], 2, " GFLOP")
    if "size" in target and (size := bundled(model.name)) is not None:
        most("size on disk", size, target["size"], 1, " MB")
    if ae and "rmse" in target:
        most("reconstruction RMSE, mean over channels", ae["rmse"], target["rmse"])
    for channel, error in ae.get("weather_headline", {}).items():
        if "weather" in target:
            most(f"… of {channel}, in units of its weather", error, target["weather"], 2)
    if "test_over_train" in ae:
        gap = abs(ae["test_over_train"] - 1)
        most("held-out error and training error, relative difference", gap, GAP)
    by = {VARIABLES[v].short: e for v, e in ae.get("rmse_by_variable", {}).items()}
    if {"t", "z", "q", "u", "v"} <= by.keys():
        best, worst = max(by["t"], by["z"]), min(by["q"], by["u"], by["v"])
        found = f"{number(best)}, {number(worst)}"
        what = "the worse of t and z, the best of q, u and v"
        rows.append((what, "in this order", found, reached(best < worst)))
    if not model.prior:
        return rows
    most(
        "autocorrelation at 1, 6, 12, 23 h, largest difference",
        model.window["autocorrelation_gap"]["draws"],
        MEMORY,
    )
    edge = model.window["seam_draws"]
    most("differences across the seam / most elsewhere", _over(edge["seam"], edge["high"]), SEAM)
    for mode, part in model.longer.items():
        apart = [abs(v["draws"] - v["truth"]) for v in part["tendency_across"].values()]
        most(f"tendencies across joints / inside, draws less truth, {mode}", max(apart), JOINT)
    return rows


def bundled(name: str) -> float | None:
    r"""The size in MB of a bundled model."""
    folder = MODELS / name
    if not folder.is_dir():
        return None
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def reconstruction(models: Sequence[Model]) -> str:
    models = [model for model in models if model.autoencoder]
    if not models:
        return ""
    header = ["variable"]
    for model in models:
        header += [f"{model.name}: RMSE", f"{model.name}: of the weather"]
    rows = []
    for variable in models[0].autoencoder["rmse_by_variable"]:
        var = VARIABLES[variable]
        row = [f"{var.short}, {variable.replace('_', ' ')}"]
        for model in models:
            scores = model.reconstruction
            here = scores.isel(channel=(scores["variable"] == variable).values)
            row.append(number(float(here["rmse"].mean())))
            weather = float(here["rmse_weather"].mean()) if "rmse_weather" in here else None
            row.append(number(weather, 2))
        rows.append(row)
    mean = ["**mean over channels**"]
    for model in models:
        mean += [f"**{number(model.autoencoder['rmse'], 4)}**", ""]
    return table(header, [*rows, mean])


def levels(models: Sequence[Model]) -> str:
    r"""RMSE and, in parentheses, the same in units of the weather, by level."""
    parts = []
    for model in models:
        if not model.autoencoder:
            continue
        scores = model.reconstruction
        names = [v for v in dict.fromkeys(scores["variable"].values) if not VARIABLES[v].surface]
        rows = []
        for level in sorted(set(scores["level"].dropna("channel").values)):
            row = [f"{level:.0f}"]
            for name in names:
                at = scores.isel(
                    channel=((scores["variable"] == name) & (scores["level"] == level)).values
                )
                weather = number(at["rmse_weather"].item(), 2) if "rmse_weather" in at else "·"
                row.append(f"{number(at['rmse'].item())} ({weather})")
            rows.append(row)
        heads = [f"{model.name}, hPa", *(VARIABLES[v].short for v in names)]
        parts.append(table(heads, rows))
    return "\n".join(parts)


def spectra(models: Sequence[Model]) -> str:
    columns: dict[str, dict[str, Any]] = {}
    for model in models:
        if model.autoencoder:
            columns[f"{model.name}: reconstructions"] = model.autoencoder
        if model.prior:
            columns[f"{model.name}: draws"] = model.window
    found = {name: summary.get("fine_energy", {}) for name, summary in columns.items()}
    rows = [
        [channel, *(number(each.get(channel), 2) for each in found.values())]
        for channel in PAPER
        if any(channel in each for each in found.values())
    ]
    return table(["channel", *found], rows)


def climate(models: Sequence[Model]) -> str:
    rows = []
    for model in models:
        parts = {}
        if model.prior:
            parts[f"{model.prior['window']} h"] = model.window
        parts |= model.longer
        for how, part in parts.items():
            ratio = list(part["std_ratio"].values())
            rows.append(
                [
                    f"{model.name}, {how}",
                    f"{part['trajectories']}",
                    *(
                        f"{number(part[f'{k}_distance_total'])} "
                        f"({number(part[f'{k}_expected_total'])})"
                        for k in ("mean", "std")
                    ),
                    f"{number(min(ratio), 2)}–{number(max(ratio), 2)}",
                ]
            )
    return table(
        ("trajectories", "number", "means apart", "deviations apart", "deviation, draws / truth"),
        rows,
    )


def memory(models: Sequence[Model]) -> str:
    return "\n".join(_autocorrelations(m.name, m.window, SHORT) for m in models if m.prior)


def composed(models: Sequence[Model]) -> str:
    parts = []
    for name, part in _longer(models):
        least, most = (number(part["variance_by_hour"][k], 2) for k in ("least", "most"))
        parts.append(
            _autocorrelations(name, part, LONG)
            + f"\nVariance hour by hour, the mean over these channels: {least} to {most} of the "
            f"truth's ({name}).\n"
        )
    return "\n".join(parts)


def _longer(models: Sequence[Model]) -> Iterator[tuple[str, dict[str, Any]]]:
    for model in models:
        for mode, part in model.longer.items():
            yield f"{model.name}, {mode}", part


def _autocorrelations(name: str, part: dict[str, Any], lags: Sequence[int]) -> str:
    rows = []
    for channel, at in part["autocorrelation"].items():
        there = [at.get(str(lag)) for lag in lags]
        pairs = [f"{number(v['draws'])} ({number(v['truth'])})" if v else "·" for v in there]
        error = max((v["error"] or 0.0 for v in there if v), default=None)
        ratios = [number(part[k][channel], 2) for k in ("variance_ratio", "tendency_ratio")]
        rows.append([channel, *pairs, number(error), *ratios])
    heads = (name, *(f"{lag} h" for lag in lags), "± at most", "variance", "tendency")
    return table(heads, rows)


def joints(models: Sequence[Model]) -> str:
    rows = []
    for name, part in _longer(models):
        for channel, at in part["tendency_across"].items():
            bend = part["curvature_across"][channel]
            rows.append(
                [
                    f"{name}: {channel}",
                    f"{number(at['draws'])} ± {number(at['error'])}",
                    number(at["truth"]),
                    f"{number(bend['draws'])} ± {number(bend['error'])}",
                    number(bend["truth"]),
                ]
            )
    heads = ("channel", "tendency: draws", "truth", "curvature: draws", "truth")
    return table(heads, rows)


def seam(models: Sequence[Model]) -> str:
    rows = []
    for model in models:
        edges = {}
        if model.autoencoder:
            edges["error of reconstructions"] = model.autoencoder["seam_error"]
            edges["differences, reconstructions / truth"] = model.autoencoder["seam_steps"]
        if model.prior:
            edges["differences, draws / truth"] = model.window["seam_draws"]
        for what, edge in edges.items():
            span = f"{number(edge['low'], 2)}–{number(edge['high'], 2)}"
            rows.append([f"{model.name}: {what}", number(edge["seam"], 2), span])
    return table(("relative to the mean elsewhere", "at the seam", "elsewhere, 5–95 %"), rows)


def others(models: Sequence[Model]) -> str:
    r"""The figures of all but the first model."""
    lines = ["\n## The other model\n"]
    for model in models[1:]:
        lines.append(f"### {model.name}\n")
        for kind, names in FEWER.items():
            for name in names if kind == "autoencoder" or model.prior else ():
                lines.append(f"![{model.name}: {name}](figures/{figure_name(model, kind, name)})\n")
    return "\n".join(lines)


def _over(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


if __name__ == "__main__":
    main()
