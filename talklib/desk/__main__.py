"""`python -m talklib.desk build [--out DIR]` rebuilds the base model."""

import argparse
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m talklib.desk", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="train the base model anew (about 6 minutes of one quiet core)")
    build.add_argument("--out", type=Path, default=Path(__file__).parent / "model", help="folder to write")
    out = parser.parse_args().out
    from .base import build as build_model

    record = build_model(out)
    print(f"wrote {out} in {record['minutes']} minutes; model.safetensors {record['sha256']['model.safetensors']}")


if __name__ == "__main__":
    main()
