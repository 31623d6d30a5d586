"""A finished figure: the files, and the same drawing as an element of the page."""

import dataclasses
import io
import re
from pathlib import Path

from matplotlib.figure import Figure

from attnscale.files import replacing
from attnscale.report.figures.style import CSS_NAMES


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A finished figure."""

    name: str
    """File name without its ending."""
    svg: str
    """A whole SVG file, on white."""
    png: bytes
    inline: str
    """An <svg> element for the page."""
    caption: str
    """What is drawn and how, in plain text."""
    alt: str
    """What a reader who cannot see it should know."""


def write(drawing: Drawing, folder: Path) -> None:
    """Write NAME.svg and NAME.png."""
    for ending, content in (("svg", drawing.svg.encode("utf-8")), ("png", drawing.png)):
        with replacing(folder / f"{drawing.name}.{ending}") as temporary:
            temporary.write_bytes(content)


def finish(figure: Figure, name: str, caption: str, alt: str) -> Drawing:
    """Turn a figure into files without a date and a program's name."""
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata=nothing)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": None})
    return Drawing(name, text.getvalue(), picture.getvalue(), _inline(text.getvalue(), name, alt), caption, alt)


def _inline(svg: str, name: str, alt: str) -> str:
    """The <svg> element of a file, with ids of its own, colours from the page, a role and a text for readers."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    for colour, variable in CSS_NAMES.items():
        svg = svg.replace(colour, variable)
    svg = re.sub(r'(<svg [^>]*?) (?:width|height)="[^"]*"', r"\1", svg)
    svg = re.sub(r'(<svg [^>]*?) (?:width|height)="[^"]*"', r"\1", svg)
    escaped = alt.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escaped}" ', 1).strip()
