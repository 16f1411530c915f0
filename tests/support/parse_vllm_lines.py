"""Feed command lines to vLLM's own parser and configuration classes; a script for the engine's Python.

Reads a JSON list of argument vectors (what follows ``vllm serve``) from standard input, prints a JSON list of verdicts:
``{"code": 0}`` or ``{"code": 2, "error": "..."}``. Many lines a run, because importing vLLM takes nine seconds.

The parser alone would accept a speculative schedule that overlaps or a histogram family that does not exist: it takes
any JSON there. So the values go on into the classes that vLLM makes of them at start, as far as no model is needed.
"""

# mypy: ignore-errors
# (vllm is installed in the engine's environment only)

import contextlib
import io
import json
import sys


def check_values(args):
    """Hand parsed values to the classes vLLM builds from them."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    AsyncEngineArgs.from_cli_args(args)
    if args.tool_call_parser and args.tool_call_parser not in ToolParserManager.list_registered():
        raise ValueError(f"no tool call parser {args.tool_call_parser}")
    if args.reasoning_parser and args.reasoning_parser not in ReasoningParserManager.list_registered():
        raise ValueError(f"no reasoning parser {args.reasoning_parser}")
    if args.custom_histogram_buckets is not None:
        from vllm.config import ObservabilityConfig

        ObservabilityConfig(custom_histogram_buckets=args.custom_histogram_buckets)
    config = args.speculative_config
    if config is not None:
        from vllm.config import SpeculativeConfig

        unknown = set(config) - set(SpeculativeConfig.__dataclass_fields__)
        if unknown:
            raise ValueError(f"unknown keys in --speculative-config: {sorted(unknown)}")
        schedule = config.get("num_speculative_tokens_per_batch_size")
        if schedule is not None:
            build_dynamic_sd_schedule_lookup(schedule, args.max_num_seqs, config["num_speculative_tokens"])


def judge(parser, validate, argv):
    """Return the verdict on one line."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            args = parser.parse_args(argv)
        validate(args)
        check_values(args)
    except SystemExit as stop:
        return {"code": stop.code, "error": errors.getvalue()[-500:]}
    except (ValueError, TypeError) as error:  # pydantic's validation error is a ValueError
        return {"code": 1, "error": f"{type(error).__name__}: {error}"[:500]}
    return {"code": 0}


def main():
    """Judge every line with one parser."""
    try:
        from vllm.entrypoints.common.cli_args import make_arg_parser, validate_parsed_serve_args  # 0.33
    except ImportError:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args  # 0.32
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    verdicts = [judge(parser, validate_parsed_serve_args, argv) for argv in json.load(sys.stdin)]
    sys.stdout.write("\n" + json.dumps(verdicts) + "\n")


if __name__ == "__main__":
    main()
