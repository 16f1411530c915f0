"""``sluice keys``: makes API keys."""

import hashlib
import json
from typing import Annotated

import typer

from service.gateway.auth import KEY_PREFIX, new_key

app = typer.Typer(name="keys", no_args_is_help=True, help="Make API keys. A key is shown once and stored hashed.")

SHOWN_CHARACTERS = 4


def describe_key(key: str) -> dict[str, str]:
    """What a configuration keeps of ``key``."""
    digest = hashlib.sha256(key.encode()).hexdigest()
    return {"hash": f"sha256:{digest}", "prefix": key[: len(KEY_PREFIX) + SHOWN_CHARACTERS]}


@app.callback()
def keys() -> None:
    """Make API keys. A key is shown once and stored hashed."""


@app.command()
def new(as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a script.")] = False) -> None:
    """Make one key: print it once, and the line that belongs under a tenant's 'keys:'.

    Example:  sluice keys new
    """
    key = new_key()
    kept = describe_key(key)
    if as_json:
        print(json.dumps({"key": key, **kept}))
        return
    print(f"key, shown only now:   {key}")
    print("under the tenant:")
    print("    keys:")
    print(f'      - {{hash: "{kept["hash"]}", prefix: "{kept["prefix"]}"}}')
