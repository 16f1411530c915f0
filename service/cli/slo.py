"""``sluice slo``: rules, their tests, dashboards, bucket edges and scaler inputs from the objectives."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from service.cli.options import BAD_INPUT, FAILED, fail, say, tell_faults
from service.rulebook.book import build_book, compare_book, write_book
from service.rulebook.openslo import export_openslo, import_openslo
from service.rulebook.render import render_yaml
from service.rulebook.sources import Sources, read_sources
from service.settings.build import load_plan
from service.settings.fault import SettingsRefusedError
from service.settings.load import read_file
from service.slo.objective import find_differences

app = typer.Typer(
    name="slo", no_args_is_help=True, help="Objectives: what follows from them for Prometheus, and whether it is so."
)

FolderOption = Annotated[Path, typer.Option("--dir", help="Folder with objectives/ and windows/.")]
_DIFF_LINES_MAX = 60


@app.command()
def generate(folder: FolderOption = Path("slo")) -> None:
    """Write all that follows from the objectives: rules, promtool tests, dashboards, bucket edges, scaler inputs.

    Example:  sluice slo generate
    """
    book = _build(_read(folder))
    changed = write_book(folder, book)
    for name in changed:
        say(f"wrote {folder / name}")
    print(f"{folder}: {len(book)} generated files, {len(changed)} of them changed")


@app.command()
def check(
    folder: FolderOption = Path("slo"),
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Compare the promises of this gateway's configuration too.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a script.")] = False,
) -> None:
    """Check the objectives, whether the generated files are those that follow from them, and whether a gateway promises
    the same. Exit code 1 if not, 2 if a file cannot be read.

    Example:  sluice slo check -c sluice.yaml
    """
    sources = _read(folder)
    differences = compare_book(folder, _build(sources))
    mismatches = [] if config is None else _compare_config(sources, config)
    if as_json:
        print(json.dumps({"generated": differences, "config": mismatches}))
    else:
        for line in differences[:_DIFF_LINES_MAX]:
            say(line)
        if len(differences) > _DIFF_LINES_MAX:
            say(f"... and {len(differences) - _DIFF_LINES_MAX} lines more")
        for line in mismatches:
            say(f"{config}: {line}")
        if not differences and not mismatches:
            promised = sum(len(tier.objectives) for tier in sources.tiers)
            print(f"{folder}: fine ({len(sources.tiers)} tiers, {promised} objectives)")
    if differences and not as_json:
        say("run 'sluice slo generate' and commit what it writes")
    if differences or mismatches:
        raise typer.Exit(FAILED)


@app.command("export")
def export_documents(folder: FolderOption = Path("slo")) -> None:
    """Print the objectives as OpenSLO v1 documents.

    Example:  sluice slo export > slos.yaml
    """
    print(export_openslo(_read(folder)), end="")


@app.command("import")
def import_documents(
    file: Annotated[Path, typer.Argument(help="OpenSLO v1 documents, as YAML.")],
    folder: FolderOption = Path("slo"),
    force: Annotated[bool, typer.Option("--force", help="Replace files of tiers that are there.")] = False,
) -> None:
    """Write objectives/TIER.yaml from OpenSLO v1 documents. Other kinds than SLO are left out.

    Example:  sluice slo import slos.yaml --dir slo
    """
    try:
        trees = import_openslo(read_file(file))
    except SettingsRefusedError as refused:
        tell_faults(file, refused)
    paths = {tier: folder / "objectives" / f"{tier}.yaml" for tier in trees}
    there = [str(path) for path in paths.values() if path.exists()]
    if there and not force:
        fail(f"there already: {', '.join(there)}; --force replaces them", BAD_INPUT)
    for tier, path in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render_yaml(trees[tier], f"# Imported from OpenSLO documents ({file.name}).\n"))
        print(f"wrote {path}")


def _read(folder: Path) -> Sources:
    try:
        return read_sources(folder)
    except SettingsRefusedError as refused:
        tell_faults(folder, refused)


def _build(sources: Sources) -> dict[str, str]:
    try:
        return build_book(sources)
    except ModuleNotFoundError as missing:
        fail(f"{missing.name} is not installed; dashboards are made with it: pip install 'sluice[slo]'")


def _compare_config(sources: Sources, config: Path) -> list[str]:
    try:
        configured = load_plan(config, os.environ, b"").corridor.tiers
    except SettingsRefusedError as refused:
        tell_faults(config, refused)
    written = {tier.tier: tier for tier in sources.tiers}
    found = [f"tier {name} has no objectives file" for name in configured if name not in written]
    found += [f"there is no tier {name}, but objectives for it" for name in written if name not in configured]
    for name, tier in configured.items():
        if name in written:
            found += find_differences(written[name], tier)
    return found
