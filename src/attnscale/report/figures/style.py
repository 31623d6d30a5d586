"""Colours, letters and sizes of all figures."""

from typing import Any

# Colours that stay apart in the common kinds of colour blindness (after Okabe and Ito 2008), darkened until
# they have a contrast of 4.5 on white and lightened for dark pages; markers and dashes tell them apart too.
COLOURS = (
    ("#0067a8", "#62b5f0"),
    ("#b84a00", "#ff9f68"),
    ("#00745a", "#45d0a8"),
    ("#9a3d84", "#e59bd3"),
    ("#806000", "#dcb93f"),
    ("#5a4fcf", "#aaa4ff"),
    ("#7a1f2b", "#f08c96"),
    ("#50585f", "#b6bec6"),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "d")
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
PUBLISHED_DASHES = (0, (1, 1.6))
INK, MUTED, GRID, PAPER = "#1b1f24", "#646c75", "#d9dde1", "#fefefe"
CSS_NAMES = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", PAPER: "var(--paper)"} | {
    light: f"var(--arm{number})" for number, (light, _) in enumerate(COLOURS)
}

WIDTH = 5.6  # inches; narrow, so that letters stay readable when a phone shrinks the figure
LABEL_POINTS = 8.5
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "attnscale",
    "svg.fonttype": "path",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.0,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "figure.facecolor": PAPER,
    "figure.dpi": 100.0,
    "savefig.dpi": 200.0,
}
