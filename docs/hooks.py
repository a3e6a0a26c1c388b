"""Hooks of mkdocs: pages made of the README, the notebooks, the examples and the commands' help; links that leave docs/."""

from __future__ import annotations

import base64
import contextlib
import functools
import io
import json
import os
import re
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

PLAYED = "zoo:connect_four_selfplay"
"""The agent to play against on the start page."""
FRAME = """## Play against an agent

<iframe class="play" src="play/index.html" title="Connect Four against a trained agent" loading="lazy"></iframe>

`rljax export zoo:connect_four_selfplay --web page` wrote this [page](docs/guides/exporting.md#a-web-page): the agent runs in your
browser.

"""

BADGE = re.compile(r"\[!\[([^\]]*)\]\([^)]*\)\]")
"""A link that is a picture from elsewhere; a page of the site fetches nothing."""
LINK = re.compile(r"\]\((?!\w+:)([^)\s#]+)(#[^)\s]*)?\)")
NAME = re.compile(r"(?<!\[)`(rljax(?:\.\w+)+)(\([^`]*\))?`(?!\])")
UNTOUCHED = re.compile(r"(^```.*?^```$|^#+ .*?$)", re.DOTALL | re.MULTILINE)
"""Code and headings."""
ENTRY = re.compile(r"^::: (\S+)\n(?! +options:\n +show_root_heading: false)", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the start page, the tutorials, the examples, the commands, and the page of an agent."""
    for name, data in page_of_agent().items():
        files.append(File.generated(config, f"play/{name}", content=data))
    pages = {"index.md": (ROOT / "README.md").read_text(encoding="utf-8"), **command_pages()}
    pages |= {f"examples/{path.stem}.md": example(path) for path in EXAMPLES}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    for notebook in NOTEBOOKS:
        text, pictures = tutorial(notebook)
        files.append(File.generated(config, f"tutorials/{notebook.stem}.md", content=text))
        for name, data in pictures.items():
            files.append(File.generated(config, f"tutorials/{name}", content=data))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite links for the site, and link names of rljax to the reference."""
    if page.file.src_uri == "index.md" and page_of_agent():
        markdown = markdown.replace("## Install\n", FRAME + "## Install\n", 1)
    pieces = UNTOUCHED.split(markdown)
    changed = [piece if i % 2 else link_names(relink(piece, page.file.src_uri)) for i, piece in enumerate(pieces)]
    return "".join(changed)


@functools.cache
def page_of_agent() -> dict[str, bytes]:
    """Return the files of a page on which an agent plays, by name; none where onnxruntime-web has not been fetched."""
    import rljax
    from rljax.run.export.web.runtime import is_there, runtime_folder

    if not is_there(runtime_folder()):
        return {}
    run = rljax.load_run(PLAYED)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "page"
        rljax.export_web(rljax.make_agent(run.config), run.state, out, step=run.step)
        return {path.relative_to(out).as_posix(): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def tutorial(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown with its outputs, and its pictures by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(BADGE.sub(r"[\1]", source))
            continue
        parts.append(f"```python\n{source}\n```")
        outputs = cell["outputs"]
        if printed := "".join("".join(output.get("text", "")) for output in outputs):
            parts.append(f"```text\n{printed.rstrip()}\n```")
        for output in outputs:
            for kind in ("png", "gif"):
                if data := output.get("data", {}).get(f"image/{kind}"):
                    name = f"{path.stem}_{len(pictures) + 1}.{kind}"
                    pictures[name] = base64.b64decode("".join(data))
                    parts.append(f"![what the code above draws]({name})")
    return "\n\n".join(parts) + "\n", pictures


def example(path: Path) -> str:
    """Return a script in percent format as Markdown, with the picture that it draws (of `docs/images/cookbook`) at its end."""
    parts = []
    for cell in path.read_text(encoding="utf-8").split("# %%")[1:]:
        kind, _, body = cell.partition("\n")
        if kind.strip() == "[markdown]":
            parts.append(re.sub("^# ?", "", body.strip(), flags=re.MULTILINE))
        else:
            parts.append(f"```python\n{body.strip()}\n```")
    return "\n\n".join([*parts, f"![what the script draws](../images/cookbook/{path.stem}.png)"]) + "\n"


def command_pages() -> dict[str, str]:
    """Return a page for each command of `rljax`, with its examples and its help, by file name; `commands/index.md` lists them."""
    from rljax.cli.main import DESCRIPTION, EXAMPLES
    from rljax.cli.options import Command
    from rljax.cli.parsing import by_name, parse

    pages, rows = {}, []
    for name, kind in by_name(Command).items():
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            parse([name, "--help"], Command, DESCRIPTION, EXAMPLES)
        uses = [f"# {what}\n{line}" for line, what in EXAMPLES if line.split()[1] == name]
        shown = ["```bash\n" + "\n\n".join(uses) + "\n```"] * bool(uses)
        text = [f"# rljax {name}", *shown, f"```text\n{printed.getvalue().strip()}\n```"]
        pages[f"commands/{name}.md"] = "\n\n".join(text) + "\n"
        summary = " ".join(kind.__doc__.partition("\n\n")[0].split())
        rows.append(f"| [rljax {name}]({name}.md) | {summary} |")
    pages["commands/index.md"] = "\n".join(["# Commands", "", "| | |", "| --- | --- |", *rows]) + "\n"
    return pages


def source_of(page: str) -> str:
    """Return the file of the repository that a page of the site is made from."""
    if page == "index.md":
        return "README.md"
    folder, _, name = page.rpartition("/")
    return {"tutorials": f"notebooks/{name[:-3]}.ipynb", "examples": f"examples/{name[:-3]}.py"}.get(folder, f"docs/{page}")


def relink(text: str, page: str) -> str:
    """Rewrite links between files as links between pages; a file that is no page is linked in the repository."""

    def moved(match: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(os.path.dirname(source_of(page)), match[1]))
        if not (ROOT / target).exists():
            return match[0]
        if target == "README.md":
            target = "index.md"
        elif target.endswith(".ipynb"):
            target = f"tutorials/{Path(target).stem}.md"
        elif target.startswith("examples/"):
            target = f"examples/{Path(target).stem}.md"
        elif target.startswith("docs/"):
            target = target.removeprefix("docs/")
        else:
            kind = "tree" if (ROOT / target).is_dir() else "blob"
            return f"]({REPOSITORY}/{kind}/main/{target}{match[2] or ''})"
        return f"]({os.path.relpath(target, os.path.dirname(page))}{match[2] or ''})"

    return LINK.sub(moved, text)


@functools.cache
def referenced() -> set[str]:
    """Return the names that have an entry in the reference; modules without a heading have none."""
    pages = (ROOT / "docs" / "api").glob("*.md")
    return {name for page in pages for name in ENTRY.findall(page.read_text(encoding="utf-8"))}


def link_names(text: str) -> str:
    """Link names such as `rljax.fit` and `rljax.fit(...)` to the reference."""
    known = referenced()
    return NAME.sub(lambda m: f"[{m[0]}][{m[1]}]" if m[1] in known else m[0], text)
