"""From rows to a verdict: means over seeds, differences with their uncertainty, and what they say of a claim."""

import itertools
import math
import statistics
from collections import Counter, defaultdict
from typing import Any

from rmdm.metrics import wilson
from train.study_claims import Cell, Check, Scale, Study
from train.study_trajectory import pool

POINT = ("model", "problems", "steps", "loops", "order")  # what makes rows of several seeds one point
KEPT = ("task", "metric", "parameters", "layers", "trained_loops", "updates", "rate")
HOLDS, FAILS, UNCLEAR = "holds", "does not hold", "not clear"


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A point for each model, problems and decoding: mean and sample deviation over seeds, pooled 95% interval."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in POINT)].append(row)
    return [_point(group) for group in groups.values()]


def _point(group: list[dict[str, Any]]) -> dict[str, Any]:
    values, n = [row["value"] for row in group], sum(row["n"] for row in group)
    mean = statistics.fmean(values)
    point = {key: group[0][key] for key in (*POINT, *KEPT)}
    point |= {"seeds": len(group), "n": n, "value": mean, "by_seed": values}
    point["deviation"] = statistics.stdev(values) if len(values) > 1 else None
    point["forward_passes"] = statistics.fmean(row["forward_passes"] for row in group)
    if group[0]["metric"] == "solved":
        point["interval"] = list(wilson(round(mean * n), n))
        sampling = (mean * n + 1) / (n + 2) * (1 - (mean * n + 1) / (n + 2)) / n  # never 0, not even at 0% and 100%
    else:
        half = statistics.fmean((row["interval"][1] - row["interval"][0]) / 2 for row in group) / math.sqrt(len(group))
        point["interval"] = [mean - half, mean + half]
        sampling = (half / 1.96) ** 2
    # Problems and seeds both make a mean uncertain; the seeds' deviation has the problems' in it.
    point["error"] = math.sqrt(max(sampling, (point["deviation"] or 0.0) ** 2 / len(values)))
    for key in ("bits_per_char", "entropy"):
        if key in group[0]:
            point[key] = statistics.fmean(row[key] for row in group)
    return point | (pool(group) if "by_kind" in group[0] else {})


def compare(check: Check, points: dict[Cell, dict[str, Any]]) -> dict[str, Any]:
    left, right = points[check.left], points[check.right]
    difference = left["value"] - right["value"]
    half = 1.96 * math.hypot(left["error"], right["error"])
    verdict = (
        HOLDS if difference - half > -check.margin else FAILS if difference + half < -check.margin else UNCLEAR
    )  # fmt: skip
    return {
        "left": str(check.left), "right": str(check.right), "margin": check.margin, "left_value": left["value"],
        "right_value": right["value"], "difference": difference, "half_interval": half, "verdict": verdict,
    }  # fmt: skip


def judge(study: Study, scale: Scale, summary: list[dict[str, Any]]) -> dict[str, Any]:
    points = {Cell(**{key: point[key] for key in POINT}): point for point in summary}
    if study.figure == "pareto":
        findings = _pareto(scale, summary)
    elif study.figure == "text":
        findings = _text(summary)
    elif study.figure == "trajectory":
        findings = _kinds(summary)
    else:
        findings = [compare(check, points) for check in study.checks]
    count = Counter(finding["verdict"] for finding in findings)
    total = len(findings)
    if not total:
        word = "not tested"
    elif count[HOLDS] == total:
        word = HOLDS
    elif not count[HOLDS]:
        word = FAILS if count[FAILS] else UNCLEAR
    else:
        word = "holds in part"
    shares = f"{count[HOLDS]} of {total} comparisons hold, {count[FAILS]} do not, {count[UNCLEAR]} are not clear"
    return {"verdict": f"{word}: {shares}", "findings": findings}


def first_steps(summary: list[dict[str, Any]], threshold: float) -> dict[tuple[str, str], int | None]:
    """The fewest steps with which a model's mean reaches the threshold on a set of problems; None: it never does."""
    found: dict[tuple[str, str], int | None] = {}
    for point in sorted(summary, key=lambda point: -point["steps"]):
        key = (point["problems"], point["model"])
        found.setdefault(key, None)
        if point["value"] >= threshold:
            found[key] = point["steps"]
    return found


def _pareto(scale: Scale, summary: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each deep baseline against the recursive model of the same depth: never more steps, with fewer parameters."""
    steps = first_steps(summary, scale.threshold)
    models = {(point["problems"], point["model"]): point for point in summary}
    findings = []
    for key, point in models.items():
        if point["trained_loops"] > 1:
            continue
        rivals = [
            other for other, candidate in models.items()
            if other[0] == key[0] and candidate["trained_loops"] > 1
            and candidate["layers"] * candidate["trained_loops"] == point["layers"]
        ]  # fmt: skip
        for rival in rivals:
            mine, theirs = steps[rival] or math.inf, steps[key] or math.inf
            verdict = UNCLEAR if mine == theirs == math.inf else HOLDS if mine <= theirs else FAILS
            findings.append({
                "left": f"{rival[1]}, {models[rival]['parameters']:,} parameters",
                "right": f"{key[1]}, {point['parameters']:,} parameters", "left_steps": steps[rival],
                "right_steps": steps[key], "threshold": scale.threshold, "verdict": verdict,
            })  # fmt: skip
    return findings


def _text(summary: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The paper's own finding is a negative one: with loops, the NLL of samples is no lower."""
    plain = {point["steps"]: point for point in summary if point["trained_loops"] == 1}
    findings = []
    for point in summary:
        if point["trained_loops"] == 1:
            continue
        base = plain[point["steps"]]
        difference = point["value"] - base["value"]
        half = 1.96 * math.hypot(point["error"], base["error"])
        findings.append({
            "left": f"{point['model']}, T={point['steps']}", "right": f"{base['model']}, T={base['steps']}",
            "margin": 0.0, "left_value": point["value"], "right_value": base["value"], "difference": difference,
            "half_interval": half, "verdict": HOLDS if difference > half else FAILS if difference < -half else UNCLEAR,
        })  # fmt: skip
    return findings


def _kinds(summary: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each kind of inference against the next harder one: in which loop its cells become right for good."""
    findings = []
    for point in summary:
        kinds = [kind for kind in point["kinds"] if kind["cells"] > 1 and kind["mean_loop"] is not None]
        for easy, hard in itertools.pairwise(kinds):
            difference = hard["mean_loop"] - easy["mean_loop"]
            half = 1.96 * math.hypot(easy["error"], hard["error"])
            findings.append({
                "left": easy["kind"], "right": hard["kind"], "left_loop": easy["mean_loop"],
                "right_loop": hard["mean_loop"], "difference": difference, "half_interval": half,
                "verdict": HOLDS if difference > half else FAILS if difference < -half else UNCLEAR,
            })  # fmt: skip
    return findings
