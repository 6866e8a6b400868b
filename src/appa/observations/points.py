r"""Observations at points, read from tables.

A table is long, one row a value, or wide, one column a variable. Either way it becomes rows of the
same columns, each with a variable and the unit it is in: numbers :math:`v` and errors
:math:`\sigma` in the source's units become :math:`a v + b` and :math:`a \sigma` in the model's.
Everything is done by column and by pair of variable and unit, of which there are few.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..errors import DataError, nearest
from . import checks, observables
from .collection import Observations
from .gridded import Rules, default_error
from .synthesis import COLUMNS
from .times import utc, with_times
from .units import NAMES, conversion, looks_like, recognise, spelling, wrong_units

__all__ = ["ROLES", "read_table", "roles_of"]

# What columns are found under; ours come first.
ROLES: dict[str, tuple[str, ...]] = {
    "time": ("time", "valid_time", "datetime", "date_time", "timestamp", "obs_time", "date"),
    "latitude": ("latitude", "lat"),
    "longitude": ("longitude", "lon", "long", "lng"),
    "variable": ("variable", "parameter", "param", "element", "observable"),
    "level": ("level", "pressure_level", "plev", "lev", "isobaricinhpa"),
    "value": ("value", "observation", "obs", "obsvalue", "measurement"),
    "error": ("error", "obs_error", "sd", "std", "sigma", "uncertainty", "standard_deviation"),
    "station": ("station", "station_id", "stationid", "site", "id", "wmo_id", "wmo", "icao"),
    "elevation": ("elevation", "elev", "station_elevation", "height", "altitude", "alt"),
    "units": ("units", "unit"),
}
TEXT = ("time", "variable", "station", "units")
ERRORS = ("_error", "_err", "_sd", "_std")
# Numbers that are about observations, or about when and who: flags of quality, codes, counts.
OTHER = (
    r"^(other .*|index|level_\d+|unnamed.*|row|year|month|day|hour|minute|second|doy)$"
    r"|(^|[\W_])(qc|qa|qf|quality|flags?|ids?|code|type|status|source|count|number|nr|no|wban|usaf"
    r"|seq|sequence|version)\d*([\W_]|$)"
)
HIGHEST, LOWEST = 9000.0, -500.0  # m; what is beyond is a sign for "not known", as −999.9


def roles_of(names: Iterable[Any], rules: Rules) -> dict[str, tuple[str, str | None]]:
    r"""What each column is, in our words, and the unit its name has in brackets."""
    roles, taken, columns = {}, {}, rules.columns
    unknown = [old for old in columns if old not in [str(n) for n in names]]
    if unknown and not rules.several:
        raise DataError(
            f"columns name {unknown[0]!r}, which is not there{nearest(unknown[0], map(str, names))}"
        )
    for old in map(str, names):
        match = re.fullmatch(r"(.*?)\s*[\[(](.+)[\])]\s*", old)
        plain, unit = (match[1], match[2]) if match else (old, None)
        plain = columns.get(old, plain)
        key = re.sub(r"[\s-]+", "_", plain.strip().lower())
        role = next((r for r, aliases in ROLES.items() if key in aliases), plain)
        roles[old] = role, unit
        if role in ROLES:
            taken.setdefault(role, []).append(old)
    for role, olds in taken.items():
        # the first of the aliases is meant; told by the caller, it is that one
        def rank(old: str, role: str = role) -> int:
            key = re.sub(r"[\s-]+", "_", roles[old][0] if old in columns else old).lower()
            return -1 if old in columns else (*ROLES[role], key).index(key)

        for old in sorted(olds, key=rank)[1:]:
            roles[old] = f"other {role}: {old}", None
    return roles


def read_table(
    frame: pd.DataFrame,
    locate: Callable[[int], str],
    where: str,
    rules: Rules,
) -> Observations:
    r"""Reads a table; see `read_observations`.

    Arguments:
        frame: The table, in either form.
        locate: Names a row by its number.
        where: Names the table.
        rules: What the caller said.
    """
    if isinstance(frame.index, pd.DatetimeIndex) or frame.index.names != [None]:
        frame = frame.reset_index()
    roles = roles_of(frame.columns, rules)
    frame = frame.set_axis([roles[str(c)][0] for c in frame.columns], axis=1)
    frame = frame.reset_index(drop=True)
    told = {role: unit for role, unit in roles.values() if unit}
    frame, notes = with_times(frame, roles, where, rules.columns)
    lacking = [c for c in ("time", "latitude", "longitude") if c not in frame]
    if lacking:
        raise DataError(
            f"{where} has no {' and no '.join(lacking)}; it has {', '.join(roles)}: say which is "
            f"which with columns={{'…': {lacking[0]!r}}}"
        )
    if "value" in frame and "variable" not in frame:
        raise DataError(
            f"{where} has values but no variable; add one, for example "
            "table.assign(variable='2m_temperature'), or name the column after it: "
            "columns={'value': '2m_temperature'}"
        )
    each = "value" in frame and "units" in frame  # rows say their own units
    if "value" not in frame:
        rows, unknown, unused = _melt(frame, told, where)
    else:
        unknown, unused = checks.table({}), [str(c) for c in frame.columns if c not in ROLES]
        rows = frame.assign(row=np.arange(len(frame)))
        if "units" not in rows:
            rows["units"] = told.get("value", "")
    names = [old for old, (role, _) in roles.items() if role in unused]
    notes += [f"{where}: not used: {', '.join(map(repr, names))}"] if names else []
    if not len(rows):
        return Observations(None, None, unknown, notes)
    raw = rows
    rows, foreign = _standard(rows, told, rules, where, each)
    reason = checks.screen(rows, levels=rules.levels, tolerance=rules.tolerance, foreign=foreign)
    counts = {}
    for k in np.unique(reason[reason >= 0]):
        name, bad = checks.REASONS[k], np.flatnonzero(reason == k)
        counts[name] = len(bad), _example(raw.iloc[bad[0]], name, locate)
    good = rows.loc[reason < 0]
    hour, _ = checks.match_hours(good["time"].to_numpy())
    points = good.loc[:, list(COLUMNS)].assign(hour=hour, longitude=good["longitude"] % 360)
    elevation = points["elevation"]
    absurd = elevation.notna() & ~elevation.between(LOWEST, HIGHEST)
    if absurd.any():
        notes.append(
            f"{where}: {int(absurd.sum()):,} of {len(points):,} observations have an elevation "
            f"that cannot be, such as {elevation[absurd].iloc[0]:g} m, which is taken as unknown"
        )
    points["elevation"] = elevation.where(~absurd)
    return Observations(points, None, checks.join([unknown, checks.table(counts)]), notes)


def _melt(
    frame: pd.DataFrame, told: dict[str, str], where: str
) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    r"""One row a value, of a table with a column a variable; an empty cell is no observation.

    Numbers in a column of no known name are counted as of an unknown variable, unless by its name
    the column is about other things.

    Returns:
        The rows, the table of what is unknown, and the columns that are not used.
    """
    shared = [c for c in ROLES if c in frame and c not in ("variable", "value", "error", "units")]
    base, parts = frame.loc[:, shared].assign(row=np.arange(len(frame))), []
    others = [str(c) for c in frame.columns if c not in ROLES]
    errors = {key + end for key in others for end in ERRORS}
    unknown: dict[str, int] = {}
    unused: list[str] = []
    named = False  # whether a column is meant to be a variable, as far as one can tell
    for key in others:
        sd = next((key + end for end in ERRORS if key + end in frame), None)
        seen = frame[key].notna().to_numpy()
        if recognise(key) is not None:
            part = base.assign(variable=key, value=frame[key], units=told.get(key, ""))
            if sd is not None:
                part["error"] = frame[sd]
            parts.append(part.loc[seen])
            continue
        close = difflib.get_close_matches(key, [*NAMES, *observables.known()], cutoff=0.85)
        named |= bool(sd or close or key in told)
        if sd or close or key in told or (key not in errors and _of_numbers(frame[key], key)):
            unknown[key] = int(seen.sum())
        elif key not in errors and seen.any():
            unused.append(key)
    if not parts and not named:
        raise DataError(
            f"{where} has neither a column `value` nor one named after a variable; it has "
            f"{', '.join(map(str, frame.columns))}: name them, for example with "
            "columns={'TEMP': '2m_temperature'}"
        )
    rows = pd.concat(parts, ignore_index=True) if parts else base.head(0)
    example = f"{where}: " + ", ".join(f"column {key!r}{_hint(key)}" for key in unknown)
    return rows, checks.table({checks.UNKNOWN: (sum(unknown.values()), example)}), unused


def _of_numbers(column: Any, key: str) -> bool:
    r"""Whether a column may be of values that were observed."""
    if re.search(OTHER, key.lower()) or column.dtype.kind in "bmM":
        return False
    numbers: Any = pd.to_numeric(column, errors="coerce")
    return 2 * int(numbers.notna().sum()) > int(column.notna().sum())


def _hint(name: str) -> str:
    r"""The known name nearest to an unknown one: one that begins alike, or is spelt alike."""
    word = re.sub(r"[\s-]+", "_", name.strip().lower())
    stem = re.sub(r"_?\d{2,4}(hpa)?$", "", word)  # of a column named after a level too
    every = [*observables.known(), *(n for n in NAMES if len(n) > 2)]
    found = difflib.get_close_matches(word, every, n=1, cutoff=0.8)
    found = found or [n for n in every if len(stem) > 2 and n.startswith(stem)]
    found = found or difflib.get_close_matches(stem, every, n=1, cutoff=0.0)
    alike = difflib.SequenceMatcher(None, stem, found[0]).ratio() > 0.5
    return f"; did you mean {found[0]!r}?" if alike else f"; the nearest known is {found[0]!r}"


def _standard(
    rows: pd.DataFrame, told: dict[str, str], rules: Rules, where: str, each: bool
) -> tuple[pd.DataFrame, NDArray]:
    r"""Rows with our names, units and types, and which of them are in a unit that does not convert;
    values that are no numbers are NaN. What is said of a whole column must convert, what each row
    says need not."""
    number = {c: _numbers(rows, c) for c in ("latitude", "longitude", "level", "value", "error")}
    number["level"] = _levels(number["level"], rules.units.get("level") or told.get("level"))
    elevation = _numbers(rows, "elevation")
    unit = rules.units.get("elevation") or told.get("elevation")
    elevation = elevation * (conversion(unit, "m", "elevation")[0] if unit else 1)

    text = {c: _text(rows, c) for c in ("variable", "units")}
    code, raw = pd.factorize(text["variable"])
    unit_code, raw_units = pd.factorize(text["units"])
    pairs, pair = np.unique(code * len(raw_units) + unit_code, return_inverse=True)
    names = np.empty(len(pairs), dtype=object)
    used: list[str] = []
    said: list[str | None] = []  # None where the unit is the observable's own for want of another
    scale, offset = np.ones(len(pairs)), np.zeros(len(pairs))
    foreign = np.zeros(len(pairs), bool)
    for k, (i, j) in enumerate(zip(*np.divmod(pairs, len(raw_units)), strict=True)):
        known = recognise(raw[i])
        names[k], level, implied = known or ("", None, None)
        used.append("")
        said.append(None)
        if known is not None:
            target = observables.find(names[k]).units
            said[k] = str(rules.units.get(names[k]) or raw_units[j] or implied or "") or None
            used[k] = str(said[k] or target)
            try:
                scale[k], offset[k] = conversion(used[k], target, names[k])
            except DataError:
                if not each or rules.units.get(names[k]):
                    raise
                foreign[k] = True
            if level is not None:
                mine = (pair == k) & np.isnan(number["level"])
                number["level"][mine] = level

    variable, usable = names[pair], np.where(foreign, "", names)
    _check_units(variable, number, pair, usable, said, where)
    sd = _defaults(rows, number["error"], pair, usable, used, scale, rules.error, where)
    frame = pd.DataFrame(
        {
            "time": utc(rows["time"]),
            "latitude": number["latitude"],
            "longitude": number["longitude"],
            "variable": variable,
            "level": number["level"],
            "value": scale[pair] * number["value"] + offset[pair],
            "error": scale[pair] * sd,
            "station": _text(rows, "station"),
            "elevation": elevation,
        }
    )
    return frame, foreign[pair]


def _numbers(rows: pd.DataFrame, name: str) -> NDArray:
    if name not in rows:
        return np.full(len(rows), np.nan)
    numbers: Any = pd.to_numeric(rows[name], errors="coerce")
    return numbers.to_numpy(np.float64, copy=True)


def _text(rows: pd.DataFrame, name: str) -> NDArray:
    if name not in rows:
        return np.full(len(rows), "", dtype=object)
    return rows[name].astype("str").fillna("").str.strip().to_numpy(object)


def _levels(level: NDArray, unit: str | None) -> NDArray:
    r"""Levels in hPa; 0 stands for none."""
    known = level[np.isfinite(level) & (level > 0)]
    if not unit and len(known) and np.median(known) > 2000:  # no pressure on this planet in hPa
        unit = "Pa"
    return np.where(level > 0, level * (conversion(unit, "hPa", "level")[0] if unit else 1), np.nan)


def _check_units(
    variable: NDArray,
    number: dict,
    pair: NDArray,
    names: NDArray,
    said: list[str | None],
    where: str,
) -> None:
    r"""Raises where a column as a whole is in another unit than it is said to be in."""
    low, high = checks.limits(variable, number["level"])
    wrong = []
    for k, name in enumerate(names):
        mine = pair == k
        x = number["value"][mine]
        if name and (likely := looks_like(name, x, low[mine], high[mine], said[k])):
            unit = spelling(said[k] or observables.find(name).units)
            wrong.append(wrong_units(name, x, unit, likely))
    if wrong:
        raise DataError(f"{where}: " + "\n".join(wrong))


def _defaults(
    rows: pd.DataFrame,
    sd: NDArray,
    pair: NDArray,
    names: NDArray,
    used: list[str],
    scale: NDArray,
    error: Mapping[str, Any],
    where: str,
) -> NDArray:
    r"""Errors in the units of their values, those that are missing as the caller said."""
    known = [n for n in dict.fromkeys(names) if n]
    lacking = [n for n in known if n not in error]
    if "error" not in rows and lacking:
        raise DataError(
            f"{where} has no column `error`; give one standard deviation each of "
            f"{', '.join(lacking)}: error={{{lacking[0]!r}: …}}, or a column"
        )
    for k, name in enumerate(names):
        if name not in error:
            continue
        same = {round(scale[i], 12) for i, other in enumerate(names) if other == name}
        if len(same) > 1 and not isinstance(error[name], str):
            raise DataError(
                f"{where}: {name!r} comes in several units, so that the unit of its error "
                f"{error[name]!r} is not known; say it: "
                f"error={{{name!r}: '{error[name]} {used[k]}'}}"
            )
        given = default_error(error, name, used[k]) or np.nan
        sd = np.where((pair == k) & np.isnan(sd), given, sd)
    return sd


SHOWN = {
    checks.NUMBER: ("variable", "value"),
    checks.DATE: ("time",),
    checks.COORDINATES: ("latitude", "longitude"),
    checks.UNKNOWN: ("variable",),
    checks.UNIT: ("variable", "units"),
    checks.LEVEL: ("variable", "level"),
    checks.RANGE: ("variable", "value", "units"),
    checks.ERROR: ("variable", "error"),
    checks.TOLERANCE: ("time",),
    checks.DUPLICATE: ("variable", "station", "time"),
}


def _example(row: Any, reason: str, locate: Callable[[int], str]) -> str:
    shown = [f"{c}={row[c]}" for c in SHOWN[reason] if c in row.index and str(row[c]) != ""]
    hint = _hint(str(row["variable"])) if reason == checks.UNKNOWN else ""
    if reason == checks.UNIT and (known := recognise(row["variable"])) is not None:
        try:
            conversion(row["units"], observables.find(known[0]).units, known[0])
        except DataError as error:  # which says what would convert
            hint = f"; {error}"
    return f"{locate(int(row['row']))}: {', '.join(shown)}{hint}"
