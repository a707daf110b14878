"""Builds the site of the documentation: pages of docs/, READMEs beside the code, a reference of the Python package.

    docs_site.py OUT

wants the package and python/tests/docs.txt in the environment (scripts/docs.sh). Fails where a
link, to a page or to a place in one, leads nowhere.
"""

import html.parser
import importlib.abc
import importlib.machinery
import importlib.util
import os
import pathlib
import re
import shutil
import sys
import urllib.parse
import warnings

import markdown2
import pdoc

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = ("cookbook", "formats", "decisions")  # folders of docs/
ROOMS = ("src/**", "python", "bench", "examples", "fuzz")  # whose READMEs are pages, too
# Of adapters: what is not installed is stood in for, as nothing of it is documented.
FOREIGN = (
    "IPython datasets dspy inspect_ai langchain_core langgraph lm_eval pydantic ray reasoners torch "
    "tqdm transformers treequest trl"
).split()
MODULES = [
    "dendrite",
    "dendrite.search",
    "dendrite.export",
    "dendrite.notebook",
    "dendrite.ray",
    "dendrite.testing.golden",
    *(f"dendrite.adapters.{name}" for name in "dspy inspect langchain lm_eval reasoners treequest trl".split()),
]
STYLE = """body { max-width: 52rem; margin: 2rem auto; padding: 0 1rem; font: 16px/1.55 system-ui, sans-serif;
color-scheme: light dark } pre { overflow: auto; padding: .8rem; background: #8882 } code { background: #8881 }
pre code { background: none } table { border-collapse: collapse } td, th { border: 1px solid #8886; padding: .2rem .5rem }
nav { font-size: 14px }"""


class _AnyKind(type):
    """Classes that have every attribute and leave what they decorate as it is."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Standin

    def __call__(cls, *arguments, **keywords):
        one = arguments[0] if len(arguments) == 1 and not keywords else None
        return one if isinstance(one, type) or callable(one) else Standin

    def __getitem__(cls, item):
        return Standin


class Standin(metaclass=_AnyKind):
    """In the place of whatever another package has."""


class _Standins(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in FOREIGN:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__getattr__ = lambda name: Standin if name[0] != "_" else (_ for _ in ()).throw(AttributeError(name))


class _Links(html.parser.HTMLParser):
    """The links of a page, and the places that links may lead to."""

    def __init__(self, text):
        super().__init__()
        self.links, self.places = [], {""}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.places.add(value)
            elif name in ("href", "src") and value and tag != "use":
                self.links.append(value)


def page(title, body, up):
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{STYLE}</style></head><body>"
        f'<nav><a href="{up}index.html">Dendrite</a> · <a href="{up}reference/dendrite.html">reference</a></nav>'
        f"{body}</body></html>"
    )


def write_pages(out):
    """docs/*.md, those of PAGES and READMEs of ROOMS; links to what is no page of the site become plain text."""
    docs = [*(ROOT / "docs").glob("*.md"), *(f for name in PAGES for f in (ROOT / "docs" / name).glob("*.md"))]
    rooms = [source for name in ROOMS for source in ROOT.glob(f"{name}/README.md")]
    sources = [*docs, *rooms]
    known = {source.resolve(): source.relative_to(ROOT / "docs").with_suffix(".html") for source in docs}
    known |= {source.resolve(): source.relative_to(ROOT).with_suffix(".html") for source in rooms}
    listed = {}
    for source in sorted(sources):
        text = source.read_text(encoding="utf-8")
        body = markdown2.markdown(text, extras=["fenced-code-blocks", "tables", "header-ids", "code-friendly"])

        name = known[source.resolve()]

        def link(match, source=source, name=name):
            target, _, place = match[2].partition("#")
            if re.match(r"[a-z]+:", match[2]) or not target:
                return match[0]
            path = (source.parent / urllib.parse.unquote(target)).resolve()
            if not path.exists():
                raise SystemExit(f"docs_site: {source.relative_to(ROOT)} links {target}, which is not there")
            if path not in known:
                return f"<span{match[1]}{match[3]}{match[4]}</span>"
            to = os.path.relpath(known[path], name.parent) + ("#" + place if place else "")
            return f'<a{match[1]}href="{to}"{match[3]}{match[4]}</a>'

        body = re.sub(r'<a([^>]*?)href="([^"]*)"([^>]*>)(.*?)</a>', link, body, flags=re.S)
        title = re.match(r"# (.*)", text)
        section = pathlib.Path("rooms") if source in rooms else name.parent
        listed.setdefault(section, []).append((name, title[1] if title else name.stem))
        target = out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        for image in re.findall(r'<img [^>]*?src="([\w./-]+)"', body):
            shutil.copyfile(source.parent / image, target.parent / image)
        target.write_text(page(listed[section][-1][1], body, "../" * (len(name.parts) - 1)), encoding="utf-8")
    sections = "".join(
        f"<h2>{'Guides' if folder == pathlib.Path() else folder.name.capitalize()}</h2><ul>"
        + "".join(f'<li><a href="{name}">{title}</a></li>' for name, title in names)
        + "</ul>"
        for folder, names in sorted(listed.items(), key=lambda item: item[0].name != "cookbook")
    )
    start = (
        "<h1>Dendrite</h1><p>Inference for programs that search with a language model.</p>"
        '<p><a href="reference/dendrite.html">Reference of the Python package</a></p>'
    )
    (out / "index.html").write_text(page("Dendrite", start + sections, ""), encoding="utf-8")


def show_inherited(shown):
    """What a public class has from private ones, as its own."""
    for base in shown.__mro__[1:]:
        if not base.__module__.startswith("dendrite._"):
            continue
        for name, member in vars(base).items():
            if not name.startswith("_") and name not in vars(shown):
                setattr(shown, name, member)


def write_reference(out):
    from dendrite import _documented

    # (Of named tuples, whose annotations pdoc looks up in the wrong module.)
    warnings.filterwarnings("ignore", "Error parsing type annotation")
    sys.meta_path.insert(0, _Standins())
    for name in MODULES:
        module = importlib.import_module(name)
        for value in vars(module).values():  # pdoc shows fields itself
            if isinstance(value, type) and value.__module__.startswith("dendrite") and value.__doc__:
                value.__doc__ = value.__doc__.split(_documented.MARK)[0]
                show_inherited(value)
    pdoc.render.configure(docformat="markdown", footer_text="Dendrite", search=True, show_source=False)
    pdoc.pdoc(*MODULES, output_directory=out / "reference")
    for path in (out / "reference").rglob("*.html"):  # what is inherited of private classes has no place
        text = path.read_text(encoding="utf-8")
        path.write_text(re.sub(r'<a href="[^"#]*#_[^"]*"([^>]*)>(.*?)</a>', r"<span\1>\2</span>", text), encoding="utf-8")


def check_links(out):
    pages = {path: _Links(path.read_text(encoding="utf-8")) for path in out.rglob("*.html")}
    wrong = []
    for path, page_of in pages.items():
        for link in page_of.links:
            target, _, place = urllib.parse.unquote(link).partition("#")
            if re.match(r"[a-z]+:|//", link):
                continue
            to = (path.parent / target).resolve() if target else path
            if not to.is_file() or (to in pages and place not in pages[to].places):
                wrong.append(f"{path.relative_to(out)}: {link}")
    if wrong:
        raise SystemExit("docs_site: links that lead nowhere:\n  " + "\n  ".join(wrong))
    return len(pages), sum(len(page_of.links) for page_of in pages.values())


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    out = pathlib.Path(sys.argv[1]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    write_reference(out)
    write_pages(out)
    pages, links = check_links(out)
    print(f"{out}/index.html: {pages} pages, {links} links, each leads somewhere")


if __name__ == "__main__":
    main()
