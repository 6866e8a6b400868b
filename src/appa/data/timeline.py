r"""What is wrong with the hours of a store, and findings in general."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Finding", "check_times"]

SEVERAL = 4  # gaps listed one by one; more become one line


@dataclass(frozen=True)
class Finding:
    r"""Something wrong with a store.

    Arguments:
        kind: What is wrong, see :mod:`appa.data.checks`.
        variable: Where: a variable, `"all"`, or nothing if it is about time.
        level: Its levels in hPa, `"all"`, or nothing.
        start, stop: The first and last time concerned.
        hours: The number of times concerned, of which there may be gaps in between.
        spells: The number of uninterrupted spells they form.
        found: What was found.
        advice: What to do about it.
    """

    kind: str
    variable: str = ""
    level: str = ""
    start: np.datetime64 | None = None
    stop: np.datetime64 | None = None
    hours: int = 0
    spells: int = 1
    found: str = ""
    advice: str = ""

    @property
    def when(self) -> str:
        r"""When, in words."""
        if self.start is None or self.stop is None:
            return ""
        first, last = (str(t.astype("datetime64[m]")) for t in (self.start, self.stop))
        first, last = first.removesuffix(":00"), last.removesuffix(":00")
        if self.hours == 1:
            return first
        spells = f" in {self.spells} spells" if self.spells > 1 else ""
        return f"{first} … {last}, {self.hours} hours{spells}"


def check_times(
    times: np.ndarray, trajectory: np.ndarray, hourly: int = 1, between: int = 0
) -> list[Finding]:
    r"""Missing, repeated, unsorted and broken hours.

    Arguments:
        times: The hours of a store, with shape :math:`(T)`.
        trajectory: The trajectory each belongs to; between two there may be any jump.
        hourly: Hours between states.
        between: Hours from a stretch to the next, in a store that is made of stretches: a jump
            over exactly as many is meant.
    """
    findings = []
    hour, step = np.timedelta64(1, "h"), np.timedelta64(hourly, "h")
    broken = times != times.astype("datetime64[h]")
    rounded = (times + np.timedelta64(30, "m")).astype("datetime64[h]")
    if broken.any():
        findings.append(
            _finding("off the hour", times[broken], "minutes beside the hour", "round the times")
        )
    unique, counts = np.unique(times, return_counts=True)
    if (counts > 1).any():
        text = f"up to {counts.max()} states for an hour"
        advice = "keep one, for example ds.drop_duplicates('time')"
        findings.append(_finding("repeated hours", unique[counts > 1], text, advice))
    back = np.flatnonzero(
        (np.diff(times) < np.timedelta64(0)) & (trajectory[1:] == trajectory[:-1])
    )
    if back.size:
        text = f"time runs backwards at {back.size} places"
        findings.append(
            _finding("unsorted hours", times[back + 1], text, "sort them: ds.sortby('time')")
        )

    gaps, steps = [], []
    for member in np.unique(trajectory):
        mine = np.unique(rounded[trajectory == member])
        delta = np.diff(mine)
        missing = (delta > step) & (delta != np.timedelta64(between, "h"))
        steps.append(delta[delta != np.timedelta64(between, "h")] if between else delta)
        gaps += [(mine[k] + step, mine[k + 1] - hour) for k in np.flatnonzero(missing)]
    delta = np.concatenate(steps)
    usual, counts = np.unique(delta, return_counts=True)
    if usual.size and usual[counts.argmax()] > step and usual.size < 0.1 * delta.size + 2:
        # A store of another step, not one with a thousand gaps.
        found = int(usual[counts.argmax()] / hour)
        text = f"a state every {found} hours, expected every {hourly}"
        findings.append(
            Finding("missing hours", found=text, advice=f"if that is meant: --step {found}")
        )
        rest = check_times(times, trajectory, found, between)
        return findings + [finding for finding in rest if finding.kind == "missing hours"]

    spans = [np.arange(a, b + hour, step) for a, b in gaps]
    spans = [np.concatenate(spans)] if len(spans) > SEVERAL else spans
    for span in spans:
        text = "not in the store" if len(spans) > 1 or len(gaps) == 1 else f"{len(gaps)} gaps"
        found = _finding("missing hours", span, text, "fetch them; no window crosses a gap", step)
        findings.append(found)
    return findings


def _finding(
    kind: str,
    when: np.ndarray,
    found: str,
    advice: str,
    step: np.timedelta64 = np.timedelta64(1, "h"),  # noqa: B008
) -> Finding:
    order = np.sort(when)
    spells = 1 + int(np.count_nonzero(np.diff(order) > step))
    return Finding(kind, "", "", order[0], order[-1], len(order), spells, found, advice)
