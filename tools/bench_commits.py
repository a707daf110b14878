"""Whether what was measured is in the history: a number from sources that nobody can build again is not shown."""
import pathlib
import re
import subprocess

from bench_samples import Series


class Commits:
    """Those of the repository at `root`. In a shallow clone, or without git, `unchecked` says what was not looked up."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.unchecked: set[str] = set()
        top = self.git("rev-parse", "--show-toplevel")
        if top.returncode != 0 or pathlib.Path(top.stdout.strip()).resolve() != root.resolve():
            self.why_not = "this is not a git repository"
        elif self.git("rev-parse", "--is-shallow-repository").stdout.strip() == "true":
            self.why_not = "the clone is shallow"
        else:
            self.why_not = ""

    def git(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["git", "-C", str(self.root), *arguments]
        try:
            return subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            return subprocess.CompletedProcess(command, 127, "", "")

    def fault(self, version: str) -> str:
        """What is wrong with it; empty if nothing is, or nothing can be known."""
        if version.endswith("-dirty"):
            return "has changes that no commit has"
        if not re.fullmatch("[0-9a-f]{7,40}", version):
            return "is no commit"
        if self.git("merge-base", "--is-ancestor", version, "HEAD").returncode == 0:
            return ""
        if self.why_not:
            self.unchecked.add(version)
            return ""
        return "is not in the history of HEAD"

    def faults(self, series: list[Series]) -> list[str]:
        """A line for each file and version that cannot be built again."""
        runs = sorted({(s.path, s.commit) for s in series if s.commit})
        return [f"bench/results/{path}: version {version} {fault}; expected a commit of HEAD's history"
                for path, version in runs if (fault := self.fault(version))]

    def note(self) -> str:
        """What could not be checked; empty if all was."""
        if not self.unchecked:
            return ""
        return (f"bench/results: whether {len(self.unchecked)} commits are in the history was not checked: {self.why_not}")
