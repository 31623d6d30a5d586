"""The report's pages in a real browser: nothing overflows, everything loads, every link leads somewhere."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from attnscale.errors import UserError
from attnscale.report.pdf import BROWSERS, browser_command, find_browser, write_pdf
from tests.unit.synthetic_run import reported

BROWSER = find_browser()
WIDTHS = (375, 768, 1280)

needs_browser = pytest.mark.skipif(BROWSER is None, reason=f"none of {', '.join(BROWSERS)} is installed")

# Every page is looked at in frames of every width, so that one start of the browser is enough. A frame has its own
# viewport: media queries and overflow are those of a window of its size.
HOST = """<!DOCTYPE html><meta charset="utf-8"><body>
<script>
const found = [];
function look(frame) {
  const view = frame.contentWindow, page = frame.contentDocument, width = view.innerWidth;
  page.querySelectorAll("details").forEach(details => { details.open = true; });
  const scrolls = element => ["auto", "scroll"].includes(view.getComputedStyle(element).overflowX);
  const inBox = element => { for (let up = element.parentElement; up && up !== page.body; up = up.parentElement)
    if (scrolls(up) || up.localName === "svg") return true; return false; };
  const name = element => element.localName + (element.id ? "#" + element.id : "") + " "
    + element.textContent.trim().slice(0, 30);
  const wide = [...page.body.querySelectorAll("*")].filter(element => {
    const box = element.getBoundingClientRect();
    return box.width > 0 && (box.right > width + 1 || box.left < -1) && !inBox(element); });
  found.push({ page: frame.dataset.page, width,
    wide: wide.map(name).slice(0, 5),
    scrolls_sideways: page.documentElement.scrollWidth > width,
    images: [...page.images].filter(image => !(image.complete && image.naturalWidth > 0)).map(image => image.src),
    empty_figures: [...page.querySelectorAll("figure")].filter(figure => {
      const picture = figure.querySelector("svg, img"), box = picture && picture.getBoundingClientRect();
      return !box || box.width < 100 || box.height < 50; }).map(name),
    figures: page.querySelectorAll("figure").length,
    anchors: [...page.querySelectorAll("a[href^='#'], use")]
      .map(link => link.getAttribute("href") || link.getAttribute("xlink:href"))
      .filter(target => target !== "#" && !page.getElementById(decodeURIComponent(target.slice(1)))),
    links: [...page.querySelectorAll("a[href]")].map(link => link.getAttribute("href")),
  });
}
window.addEventListener("load", () => {
  document.querySelectorAll("iframe").forEach(look);
  const out = document.createElement("pre");
  out.id = "found";
  out.textContent = JSON.stringify(found);
  document.body.replaceChildren(out);
});
</script>
FRAMES
</body>"""


def looked_at(folder: Path, pages: list[str], scratch: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """What the browser finds on pages of a folder at every width, and its console messages."""
    assert BROWSER is not None
    frames = [
        f'<iframe src="{page}" data-page="{page}" style="width:{width}px;height:900px;border:0"></iframe>'
        for page in pages
        for width in WIDTHS
    ]
    host = folder / "host.html"
    host.write_text(HOST.replace("FRAMES", "\n".join(frames)), encoding="utf-8")
    command = [
        *browser_command(BROWSER, scratch / "profile"),
        "--allow-file-access-from-files",
        "--window-size=1400,1000",
        "--enable-logging=stderr",
        "--v=0",
        "--dump-dom",
        host.resolve().as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=240, check=True)
    text = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    assert text, done.stdout[:500] + done.stderr[-2000:]
    messages = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(html.unescape(text[1])), messages


def complaints(findings: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """What is wrong, by kind."""
    kinds = ("wide", "images", "anchors", "empty_figures")
    found = {kind: [item for finding in findings for item in finding[kind]] for kind in kinds}
    found["scrolls_sideways"] = [finding["width"] for finding in findings if finding["scrolls_sideways"]]
    return {kind: items for kind, items in found.items() if items}


@needs_browser
def test_pages_fit_every_width_load_whole_and_their_links_lead_somewhere(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    report = tmp_path / "report"
    shutil.copytree(reported("every kind", tmp_path_factory) / "report", report)
    findings, messages = looked_at(report, ["index.html", "durations.html"], tmp_path)
    assert [finding["width"] for finding in findings] == [*WIDTHS, *WIDTHS]
    assert complaints(findings) == {}
    assert messages == []
    assert findings[0]["figures"] == len(list((report / "figures").glob("*.svg"))) > 3
    for link in {link for finding in findings for link in finding["links"]}:
        assert link.startswith(("#", "https://")) or (report / link).is_file(), link


@needs_browser
def test_whatever_is_broken_is_found(tmp_path: Path) -> None:
    broken = {
        "wide.html": '<p style="width: 2000px">too wide</p>',
        "image.html": '<img src="nowhere.png" alt="">',
        "anchor.html": '<a href="#nowhere">nowhere</a>',
        "figure.html": "<figure><svg width='200' height='0'></svg></figure>",
        "box.html": '<div style="overflow-x: auto"><p style="width: 2000px">wide, but in a box of its own</p></div>',
        "error.html": "<script>undefined.missing</script>",
    }
    for name, body in broken.items():
        (tmp_path / name).write_text(f"<!DOCTYPE html><body>{body}</body>", encoding="utf-8")
    findings, messages = looked_at(tmp_path, list(broken), tmp_path)
    found = {name: complaints([finding for finding in findings if finding["page"] == name]) for name in broken}
    assert set(found["wide.html"]) == {"wide", "scrolls_sideways"}
    assert set(found["image.html"]) == {"images"}
    assert set(found["anchor.html"]) == {"anchors"}
    assert set(found["figure.html"]) == {"empty_figures"}
    assert found["box.html"] == found["error.html"] == {}
    assert any("missing" in message for message in messages)
    assert any("nowhere.png" in message for message in messages) or found["image.html"]


@needs_browser
def test_the_page_prints_to_a_pdf(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    output = tmp_path / "wörk dir ñ" / "report.pdf"
    write_pdf(reported("every kind", tmp_path_factory) / "report" / "index.html", output)
    content = output.read_bytes()
    assert content.startswith(b"%PDF")
    pages = len(re.findall(rb"/Type\s*/Page\b", content))
    assert 3 <= pages <= 40
    assert list(output.parent.iterdir()) == [output]


def test_without_a_browser_or_a_page_one_sentence_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"index\.html is missing; write the report first"):
        write_pdf(tmp_path / "index.html", tmp_path / "report.pdf")
    (tmp_path / "index.html").write_text("<p>x</p>", encoding="utf-8")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"no browser to print with, looked for chromium.*; install one or print"):
        write_pdf(tmp_path / "index.html", tmp_path / "report.pdf")
    assert not (tmp_path / "report.pdf").exists()
