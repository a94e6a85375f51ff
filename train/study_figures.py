"""The figures and tables of studies, in Okabe and Ito's colours, which every kind of colour vision tells apart."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure  # without pyplot: no display and no global state

from rmdm.checkpoint import write_atomically
from train.study_claims import Scale, Study
from train.study_verdict import first_steps

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = "osD^vPX"
Points = list[dict[str, Any]]


def _different(points: Points, key: str) -> list[Any]:
    return list(dict.fromkeys(point[key] for point in points))


def _figure(panels: int, wide: float = 4.6) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(max(wide * panels, 5.5), 4.2), dpi=130, layout="constrained")
    return figure, list(figure.subplots(1, panels, sharey=True, squeeze=False)[0])


def _line(axes: Axes, points: Points, x: str, label: str, style: int, line: str = "-") -> None:
    """Means with the sample deviation over seeds as bars."""
    points = sorted(points, key=lambda point: point[x])
    axes.errorbar(
        [point[x] for point in points], [100 * point["value"] for point in points],
        yerr=[100 * (point["deviation"] or 0) for point in points], label=label, capsize=3, linewidth=1.6,
        color=COLOURS[style % len(COLOURS)], marker=MARKERS[style % len(MARKERS)], markersize=5, linestyle=line,
    )  # fmt: skip


def _scale_axis(axes: Axes, values: Sequence[float], label: str) -> None:
    axes.set_xscale("log")
    axes.set_xticks(list(values), [f"{value:g}" for value in values])
    axes.minorticks_off()
    axes.set_xlabel(label)
    axes.set_ylim(-3, 103)
    axes.grid(alpha=0.3)


def _legend(axes: Axes, title: str | None = None, loc: Literal["best", "upper left"] = "best") -> None:
    axes.legend(loc=loc, fontsize=8, title=title, title_fontsize=8, framealpha=0.85)


def over_steps(study: Study, scale: Scale, points: Points) -> Figure:
    """Colour is the depth K x L; a solid line is recursive, a dashed one has its depth in parameters."""
    sets = _different(points, "problems")
    figure, panels = _figure(len(sets))
    for axes, problems in zip(panels, sets, strict=True):
        here = [point for point in points if point["problems"] == problems]
        depth = {point["model"]: point["layers"] * point["trained_loops"] for point in here}
        order = sorted(set(depth.values()))
        for model in depth:
            line = [point for point in here if point["model"] == model]
            recursive = line[0]["trained_loops"] > 1 or depth[model] == order[0]
            label = f"{model}, {line[0]['parameters'] / 1000:,.0f}k parameters"
            _line(axes, line, "steps", label, order.index(depth[model]), "-" if recursive else "--")
        _scale_axis(axes, sorted(_different(here, "steps")), "denoising steps T")
        axes.set_title(problems, fontsize=9)
        _legend(axes)
    panels[0].set_ylabel("solved (%)")
    return figure


def over_loops(study: Study, scale: Scale, points: Points) -> Figure:
    steps = _different(points, "steps")
    figure, panels = _figure(len(steps))
    for axes, t in zip(panels, steps, strict=True):
        here = [point for point in points if point["steps"] == t]
        for style, model in enumerate(_different(here, "model")):
            _line(axes, [point for point in here if point["model"] == model], "loops", model, style)
        _scale_axis(axes, sorted(_different(here, "loops")), "loops when sampling, L_s")
        axes.set_title(f"T = {t}", fontsize=9)
    _legend(panels[0])
    panels[0].set_ylabel("solved (%)")
    return figure


def over_passes(study: Study, scale: Scale, points: Points) -> Figure:
    models = _different(points, "model")
    baseline = [point for point in points if point["model"] == models[0]]
    figure, panels = _figure(len(models) - 1)
    for axes, model in zip(panels, models[1:], strict=True):
        _line(axes, baseline, "forward_passes", f"{models[0]}, L = 1", 6, "--")
        here = [point for point in points if point["model"] == model]
        for style, loops in enumerate(_different(here, "loops")):
            _line(axes, [point for point in here if point["loops"] == loops], "forward_passes", f"L_s = {loops}", style)
        _scale_axis(axes, [1, 2, 4, 8, 16, 32, 64, 128], "forward passes T x L")
        axes.set_title(f"trained with L {model}", fontsize=9)
        _legend(axes, loc="upper left")  # few passes solve nothing
    panels[0].set_ylabel("solved (%)")
    return figure


def orders(study: Study, scale: Scale, points: Points) -> Figure:
    figure, [axes] = _figure(1, 6)
    for style, order in enumerate(_different(points, "order")):
        _line(axes, [point for point in points if point["order"] == order], "steps", order, style)
    _scale_axis(axes, sorted(_different(points, "steps")), "denoising steps T")
    axes.set_ylabel("solved (%)")
    _legend(axes, "commits first")
    return figure


def halting(study: Study, scale: Scale, points: Points) -> Figure:
    figure, [axes] = _figure(1, 6)
    for style, t in enumerate(_different(points, "steps")):
        here = [point for point in points if point["steps"] == t]
        _line(axes, [p for p in here if p["loops"] != "auto"], "forward_passes", f"T = {t}, fixed L", style)
        for point in here:
            if point["loops"] == "auto":
                axes.plot(point["forward_passes"], 100 * point["value"], "*", markersize=15, markeredgecolor="black",
                          color=COLOURS[style], label=f"T = {t}, until settled")  # fmt: skip
    _scale_axis(axes, [1, 2, 5, 10, 20, 50, 100, 200], "forward passes")
    axes.set_ylabel("solved (%)")
    _legend(axes)
    return figure


def heat(study: Study, scale: Scale, points: Points) -> Figure:
    steps, trained, sampled = (sorted(_different(points, key)) for key in ("steps", "trained_loops", "loops"))
    figure, panels = _figure(len(steps))
    for axes, t in zip(panels, steps, strict=True):
        values = np.full((len(trained), len(sampled)), np.nan)
        for point in points:
            if point["steps"] == t:
                values[trained.index(point["trained_loops"]), sampled.index(point["loops"])] = 100 * point["value"]
        image = axes.imshow(values, cmap="cividis", vmin=0, vmax=100, aspect="auto", origin="lower")
        for (row, column), value in np.ndenumerate(values):
            axes.text(column, row, f"{value:.0f}", ha="center", va="center", color="white" if value < 55 else "black")
        axes.set_xticks(range(len(sampled)), [str(loops) for loops in sampled])
        axes.set_yticks(range(len(trained)), [str(loops) for loops in trained])
        axes.set(xlabel="loops when sampling, L_s", title=f"T = {t}")
    panels[0].set_ylabel("loops in training, L_t")
    figure.colorbar(image, ax=panels, label="solved (%)")
    return figure


def pareto(study: Study, scale: Scale, points: Points) -> Figure:
    found = first_steps(points, scale.threshold)
    sets = _different(points, "problems")
    figure, panels = _figure(len(sets), 6)
    never = 2 * max(point["steps"] for point in points)  # a line of its own, above all that were tried
    for axes, problems in zip(panels, sets, strict=True):
        models = {point["model"]: point for point in points if point["problems"] == problems}
        for style, recursive in enumerate((True, False)):
            chosen = {m: p for m, p in models.items() if (p["trained_loops"] > 1) == recursive}
            spots = [(p["parameters"], found[problems, m] or never, m) for m, p in chosen.items()]
            axes.scatter([x for x, _, _ in spots], [y for _, y, _ in spots], s=55, color=COLOURS[style], zorder=3,
                         marker=MARKERS[style], label="recursive" if recursive else "single pass")  # fmt: skip
            for x, y in {(x, y) for x, y, _ in spots}:  # one label for all that share a spot; one kind above, one below
                names = ", ".join(model for *spot, model in spots if tuple(spot) == (x, y))
                axes.annotate(names, (x, y), xytext=(0, 8 if recursive else -16), textcoords="offset points",
                              fontsize=8, ha="center")  # fmt: skip
        reached = sorted((p["parameters"], t) for m, p in models.items() if (t := found[problems, m]) is not None)
        frontier = [(x, y) for x, y in reached if not any(a <= x and b <= y and (a, b) != (x, y) for a, b in reached)]
        axes.step([x for x, _ in frontier], [y for _, y in frontier], where="post", color="grey", label="frontier")
        ticks = sorted({point["steps"] for point in points})
        axes.set_yscale("log")
        axes.set_yticks([*ticks, never], [*map(str, ticks), "never"])
        axes.minorticks_off()
        axes.margins(x=0.15, y=0.15)
        axes.grid(alpha=0.3)
        axes.set(xlabel="parameters", title=problems, ylabel=f"steps to solve {scale.threshold:.0%}")
        _legend(axes)
    return figure


def bars(study: Study, scale: Scale, points: Points) -> Figure:
    steps, models, rates = (_different(points, key) for key in ("steps", "model", "rate"))
    figure, panels = _figure(len(steps))
    for axes, t in zip(panels, steps, strict=True):
        for style, model in enumerate(models):
            here = [point for point in points if point["steps"] == t and point["model"] == model]
            axes.bar(np.arange(len(rates)) + 0.8 * (style - (len(models) - 1) / 2) / len(models),
                     [100 * point["value"] for point in here], 0.8 / len(models), label=model, color=COLOURS[style],
                     yerr=[100 * (point["deviation"] or 0) for point in here], capsize=3)  # fmt: skip
        axes.set_xticks(range(len(rates)), [f"{rate:.0%}" for rate in rates])
        axes.set(xlabel="masked", title=f"T = {t}", ylim=(0, 103))
    panels[0].set_ylabel("solved (%)")
    _legend(panels[0])
    return figure


def text(study: Study, scale: Scale, points: Points) -> Figure:
    figure, [axes] = _figure(1, 6)
    for style, model in enumerate(_different(points, "model")):
        here = sorted((point for point in points if point["model"] == model), key=lambda point: point["steps"])
        axes.errorbar([p["steps"] for p in here], [p["value"] for p in here], [p["deviation"] or 0 for p in here],
                      label=model, color=COLOURS[style], marker=MARKERS[style], capsize=3)  # fmt: skip
    axes.set(xlabel="denoising steps T", ylabel="scorer's NLL of samples, per word (lower is better)")
    _legend(axes)
    return figure


def trajectory(study: Study, scale: Scale, points: Points) -> Figure:
    [point] = points
    figure = Figure(figsize=(13.5, 4.2), dpi=130, layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    loops = range(1, len(point["certainty"]) + 1)
    left.plot(loops, [100 * value for value in point["certainty"]], color=COLOURS[0], marker="o", label="certainty")
    left.plot(loops, [100 * value for value in point["wrong"]], color=COLOURS[1], marker="s", label="wrong cells")
    left.set(xlabel="loop", ylabel="% of open cells", title="How sure, and how wrong", ylim=(-3, 103))
    for style, kind in enumerate(kind for kind in point["kinds"] if kind["cells"]):
        middle.plot(loops, [100 * share for share in kind["right_after"]], color=COLOURS[style], marker=MARKERS[style],
                    label=f"{kind['kind']} (n = {kind['cells']})")  # fmt: skip
    middle.set(xlabel="loop", ylabel="right from here on (% of cells)", title="What comes when", ylim=(-3, 103))
    known = [(number, one) for number, one in enumerate(point["rounds"], 1) if one["mean_loop"] and one["cells"] >= 20]
    right.errorbar([number for number, _ in known], [one["mean_loop"] for _, one in known],
                   yerr=[1.96 * one["error"] for _, one in known], color=COLOURS[2], marker="D", capsize=3)  # fmt: skip
    right.set(xlabel="round of singles that reaches the cell", ylabel="first loop it is right, mean",
              title="Chains of singles, link by link")  # fmt: skip
    for axes in (left, middle):
        _legend(axes)
        axes.grid(alpha=0.3)
        axes.set_xticks(list(loops)[:: max(1, len(loops) // 10)])
    right.set_xticks([number for number, _ in known])
    right.grid(alpha=0.3)
    figure.suptitle(f"{point['model']}, {point['problems']}, T = 1", fontsize=9)
    return figure


FIGURES: dict[str, Callable[[Study, Scale, Points], Figure]] = {
    "over-steps": over_steps, "over-loops": over_loops, "over-passes": over_passes, "heat": heat, "pareto": pareto,
    "bars": bars, "text": text, "orders": orders, "halting": halting, "trajectory": trajectory,
}  # fmt: skip


def draw(study: Study, scale: Scale, report: dict[str, Any], path: Path) -> None:
    figure = FIGURES[study.figure](study, scale, report["summary"])
    write_atomically(path, lambda temporary: figure.savefig(temporary, format="png"))


# --- tables ---------------------------------------------------------------------------------------------------------


def markdown(report: dict[str, Any], stem: str) -> str:
    first = report["summary"][0]
    updates = "a checkpoint as it is" if first["updates"] is None else f"{first['updates']:,} updates of every model"
    lines = [
        f"# {report['study']}", "", f"**Claim** ({report['source']}): {report['claim']}.", "",
        f"**At {report['scale']} scale: {report['verdict']}.**", "", f"![{report['study']}]({stem}.png)", "",
        f"`{report['command']}`", "",
        f"{updates}, {report['seeds']} seeds, {report['training_minutes']} minutes of training in all. Values are means"
        " over seeds ± sample deviation, with the 95% interval of"
        " all their problems. Each seed has problems of its own, the same for all models; all are held out from"
        f" training. Rows with every setting are in `{stem}.json`.", "", "## Comparisons", "",
    ]  # fmt: skip
    lines += [_finding_table(report["findings"])] if report["findings"] else ["None."]
    lines += ["", "## Results", "", _point_table(report["summary"])]
    if "kinds" in first:
        lines += ["", "## Kinds of inference", "", _kind_table(first["kinds"] + first["rounds"])]
    return "\n".join(lines) + "\n"


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _finding_table(findings: list[dict[str, Any]]) -> str:
    if "left_steps" in findings[0]:
        body = [[f["left"], str(f["left_steps"] or "never"), f["right"], str(f["right_steps"] or "never"), f["verdict"]]
                for f in findings]  # fmt: skip
        return _table(["recursive", "steps", "single pass", "steps", "verdict"], body)
    if "left_loop" in findings[0]:
        body = [[f["left"], f"{f['left_loop']:.2f}", f["right"], f"{f['right_loop']:.2f}",
                 f"{f['difference']:+.2f} ± {f['half_interval']:.2f}", f["verdict"]] for f in findings]  # fmt: skip
        return _table(["simpler", "mean loop", "harder", "mean loop", "later by", "verdict"], body)
    percent = all(0 <= f["left_value"] <= 1 for f in findings)
    factor, unit = (100, "%") if percent else (1, "")
    body = [
        [f["left"], f"{factor * f['left_value']:.1f}{unit}", f["right"], f"{factor * f['right_value']:.1f}{unit}",
         f"{factor * f['difference']:+.1f} ± {factor * f['half_interval']:.1f}",
         f"short by at most {100 * f['margin']:.0f}" if f["margin"] else "more", f["verdict"]]
        for f in findings
    ]  # fmt: skip
    return _table(["left", "", "right", "", "difference (95%)", "claim", "verdict"], body)


def _point_table(points: Points) -> str:
    head = ["model", "problems", "T", "L", "order", "solved", "95% interval", "n", "passes", "parameters"]
    extra = [key for key in ("bits_per_char", "entropy") if key in points[0]]
    percent = points[0]["metric"] == "solved"
    factor, unit = (100, "%") if percent else (1, "")
    head[5] = "solved" if percent else "NLL"
    body = []
    for p in points:
        spread = f" ± {factor * p['deviation']:.1f}" if p["deviation"] is not None else ""
        body.append([
            p["model"], p["problems"], str(p["steps"]), str(p["loops"]), p["order"],
            f"{factor * p['value']:.1f}{unit}{spread}", "-".join(f"{factor * end:.1f}" for end in p["interval"]),
            str(p["n"]), f"{p['forward_passes']:.1f}", f"{p['parameters']:,}", *(f"{p[key]:.3f}" for key in extra),
        ])  # fmt: skip
    return _table([*head, *extra], body)


def _kind_table(kinds: list[dict[str, Any]]) -> str:
    body = [
        [kind["kind"], str(kind["cells"]), "-" if kind["mean_loop"] is None else f"{kind['mean_loop']:.2f}",
         f"{100 * kind['right_after'][-1]:.1f}%"]
        for kind in kinds if kind["cells"]
    ]  # fmt: skip
    return _table(["inference", "cells", "first loop right for good, mean", "right at the end"], body)
