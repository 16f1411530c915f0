"""Checks of the source tree: each takes the root of a tree and returns what is wrong there, one line per fault."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LINES_MAX = 300
CATCH_ALLS_MAX = 3
CORE = ("service/domain", "service/flow", "service/slo")
SCRIPT_FOLDERS = frozenset({"service/launch/engine_side"})
"""Not packages: scripts that the engine's own Python runs by path, where ``service`` cannot be imported."""

BANNED_MODULES = frozenset({"utils", "common", "helpers", "types"})
BANNED_WORDS = frozenset({"Manager", "Handler", "Helper", "Util", "Utils", "Service", "Processor"})

# Put together from parts, so that this file does not accuse itself.
LOOSE_ENDS = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX")) + r")\b")
MACHINE_TRACES = re.compile(
    "|".join(
        (
            r"/wo" + r"rk/(wt|main|shared|venv|\.library)\b",
            r"/ho" + r"me/(?!sluice\b|nonroot\b|app\b|me\b)\w",
            r"/Us" + r"ers/\w",
            r"(?<![\w.])/ro" + r"ot/\w",
            r"index[-_]ur" + r"l\W{0,4}https?://",
            r"trusted[-_]ho" + r"st\W{1,4}\w",
            r"artifac" + r"tory|jfr" + r"og|/simp" + r"le/",
        )
    ),
    re.IGNORECASE,
)


def list_modules(root: Path, *rooms: str) -> Iterator[tuple[str, Path]]:
    """Python files under ``rooms``, each with its path as it is printed."""
    for room in rooms:
        for path in sorted((root / room).rglob("*.py")):
            yield path.relative_to(root).as_posix(), path


def list_committed(root: Path) -> Iterator[tuple[str, str]]:
    """Committed (or staged) files that are text, each with what stands in it."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True).stdout
    for name in sorted(filter(None, listing.decode().split("\0"))):
        path = root / name
        if path.is_file():
            data = path.read_bytes()
            if b"\0" not in data:
                yield name, data.decode(errors="replace")


def check_imports(root: Path) -> list[str]:
    """The contracts of import-linter in ``pyproject.toml``."""
    command = [Path(sys.executable).parent / "lint-imports", "--no-cache"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return [] if done.returncode == 0 else [done.stdout + done.stderr]


def check_length(root: Path) -> list[str]:
    """No module of the service is longer than a reader keeps in mind."""
    lengths = [(name, len(path.read_text().splitlines())) for name, path in list_modules(root, "service")]
    return [f"{name}: {lines} lines, {LINES_MAX} allowed" for name, lines in lengths if lines > LINES_MAX]


def check_any(root: Path) -> list[str]:
    """The core names no ``Any``."""
    faults = []
    for name, path in list_modules(root, *CORE):
        for node in ast.walk(ast.parse(path.read_text())):
            named = isinstance(node, ast.Name) and node.id == "Any"
            reached = isinstance(node, ast.Attribute) and node.attr == "Any"
            imported = isinstance(node, ast.alias) and node.name == "Any"
            if named or reached or imported:
                faults.append(f"{name}:{node.lineno}: Any in the core")
    return faults


def check_module_names(root: Path) -> list[str]:
    """No module is called by a name that says nothing."""
    return [
        f"{name}: a module name that says nothing"
        for name, path in list_modules(root, "service", "loadtests", "tests")
        if path.stem in BANNED_MODULES or path.parent.name in BANNED_MODULES
    ]


def check_class_names(root: Path) -> list[str]:
    """No class is called by a word that says nothing."""
    faults = []
    for name, path in list_modules(root, "service", "loadtests"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                words = set(re.findall(r"[A-Z][a-z]*", node.name))
                faults += [f"{name}:{node.lineno}: {node.name} has the word {word}" for word in words & BANNED_WORDS]
    return faults


def check_catch_alls(root: Path) -> list[str]:
    """Everything is caught around one request, around one turn of a loop and in main, and nowhere else."""
    found = []
    for name, path in list_modules(root, "service"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler):
                caught = "Exception" if node.type is None else ast.unparse(node.type)
                if re.search(r"\b(Base)?Exception\b", caught):
                    found.append(f"{name}:{node.lineno}: except {caught}")
    return found if len(found) > CATCH_ALLS_MAX else []


def check_docstrings(root: Path) -> list[str]:
    """Each module says what it is for, and so does each public class and function of the service."""
    faults = []
    for name, path in list_modules(root, "service", "loadtests", "tests"):
        module = ast.parse(path.read_text())
        if not ast.get_docstring(module):
            faults.append(f"{name}: no docstring")
        if name.startswith("service/"):
            for node in module.body:
                described = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                if described and not node.name.startswith("_") and not ast.get_docstring(node):
                    faults.append(f"{name}:{node.lineno}: {node.name} has no docstring")
    return faults


def check_packages(root: Path) -> list[str]:
    """Each directory with modules is a package, so that it has a place for its docstring; one of scripts is none."""
    faults = []
    for folder in sorted({path.parent for _, path in list_modules(root, "service", "loadtests", "tests")}):
        name, is_package = folder.relative_to(root).as_posix(), (folder / "__init__.py").exists()
        if name in SCRIPT_FOLDERS and is_package:
            faults.append(f"{name}: a package, though its scripts are run by another Python")
        if name not in SCRIPT_FOLDERS and not is_package:
            faults.append(f"{name}: no __init__.py")
    return faults


def check_loose_ends(root: Path) -> list[str]:
    """Nothing is left for later in a comment."""
    return _grep(root, LOOSE_ENDS, "left for later")


def check_machine_traces(root: Path) -> list[str]:
    """No committed file names this machine's paths or the registry it installs from."""
    return _grep(root, MACHINE_TRACES, "a trace of one machine")


def _grep(root: Path, pattern: re.Pattern[str], what: str) -> list[str]:
    return [
        f"{name}:{number}: {what}: {line.strip()[:80]}"
        for name, text in list_committed(root)
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


CHECKS = (
    check_imports,
    check_length,
    check_any,
    check_module_names,
    check_class_names,
    check_catch_alls,
    check_docstrings,
    check_packages,
    check_loose_ends,
    check_machine_traces,
)
