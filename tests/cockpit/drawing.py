"""Screens as text and as pictures, and where those are kept that somebody has looked at."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from swarmfree.cockpit.screen import Window

GOLDEN = Path(__file__).parent / "golden"
PICTURES = Path(__file__).parents[2] / "docs" / "views"
# A picture asks nobody for a font: any of one width will do.
OWN_FONT = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace("Fira Code", "DejaVu Sans Mono")


def drawn(lines: list[Text]) -> str:
    """The screen as a terminal without colours shows it."""
    return "".join(f"{line.plain.rstrip()}\n" for line in lines)


def _console(window: Window, *, has_colours: bool, record: bool = False) -> Console:
    colours = {"color_system": "truecolor"} if has_colours else {"no_color": True, "color_system": None}
    return Console(
        file=io.StringIO(),
        width=window.columns,
        height=window.lines,
        force_terminal=True,
        record=record,
        **colours,  # type: ignore[arg-type]
    )


def in_colour(lines: list[Text], window: Window) -> str:
    """The screen with the sequences that colour it."""
    console = _console(window, has_colours=True)
    with console.capture() as capture:
        console.print(Text("\n").join(lines))
    return capture.get()


def as_picture(lines: list[Text], window: Window, title: str, *, has_colours: bool) -> str:
    """The screen as SVG."""
    console = _console(window, has_colours=True, record=True)
    text = Text("\n").join(lines)
    console.print(text if has_colours else Text(text.plain))
    picture = console.export_svg(title=title, theme=MONOKAI, code_format=OWN_FONT, unique_id="screen")
    return "".join(f"{line.rstrip()}\n" for line in picture.splitlines())


def require_kept(file: Path, content: str, *, write: bool) -> None:
    """The file says this; where `write` is set it is written first."""
    if write:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    assert content == file.read_text(encoding="utf-8"), f"{file.name}: look at it, then --write-screens"
